"""Operations that move experts and their tokens; each has a CUDA kernel and a reference with equal results.

In:   router output, replica shares, expert tensors, gradients of replicas.
Out:  physical routing, packed buffers, main gradients.

    ops         the operations; `checks` checks their arguments, `packed` defines the layout of buffers
    reference   every operation but `token_split` in pure torch: the CPU path, and the oracle for the kernels
    cuda        every operation as launches (`launch`) of the kernels in `csrc`
    driver      runs launches on a device; `nvrtc` compiles the kernels from `sources`
    stream_work lets streams copy, and wait for each other, without kernels
"""

from relibra.kernels.direct_function import DirectFunction, refuse_second_derivatives
from relibra.kernels.ops import (
    expert_pack,
    expert_unpack,
    grad_accumulate,
    quota_remap,
    token_split,
)
from relibra.kernels.packed import ALIGNMENT_BYTES, packed_size_bytes
from relibra.kernels.reference import EMPTY, REST, expert_checksum

__all__ = [
    "ALIGNMENT_BYTES",
    "EMPTY",
    "REST",
    "DirectFunction",
    "expert_checksum",
    "expert_pack",
    "expert_unpack",
    "grad_accumulate",
    "packed_size_bytes",
    "quota_remap",
    "refuse_second_derivatives",
    "token_split",
]
