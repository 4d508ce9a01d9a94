"""Data movement for experts and their tokens: torch operators with a CUDA kernel and a reference of the same meaning.

In:   router output, replica shares, expert tensors, gradients of replicas.
Out:  physical routing, packed buffers, slots of peers, main gradients.

    ops         the operators, checked (`checks`); `packed` is the layout of buffers
    reference   every operation in pure torch: the CPU path, and the oracle of the kernels
    cuda        every operation as launches (`launch`) of the kernels in `csrc`
    driver      launches them, compiled by `nvrtc` from `sources` and kept by `cubin_cache`
"""

from relibra.kernels.ops import (
    expert_pack,
    expert_push,
    expert_unpack,
    grad_accumulate,
    quota_remap,
)
from relibra.kernels.packed import ALIGNMENT_BYTES, packed_size_bytes
from relibra.kernels.reference import EMPTY, REST, expert_checksum

__all__ = [
    "ALIGNMENT_BYTES",
    "EMPTY",
    "REST",
    "expert_checksum",
    "expert_pack",
    "expert_push",
    "expert_unpack",
    "grad_accumulate",
    "packed_size_bytes",
    "quota_remap",
]
