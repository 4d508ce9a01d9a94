"""Data movement for experts and their tokens, with one pure-torch meaning for each operation.

In:   router output, replica shares, expert tensors.
Out:  physical routing, packed buffers.

`reference` defines every operation in torch; it is the CPU path and the oracle of the CUDA kernels.
"""

from relibra.kernels.reference import (
    ALIGNMENT_BYTES,
    EMPTY,
    REST,
    expert_accumulate,
    expert_checksum,
    expert_pack,
    expert_unpack,
    packed_size_bytes,
    quota_remap,
    route_count,
)

__all__ = [
    "ALIGNMENT_BYTES",
    "EMPTY",
    "REST",
    "expert_accumulate",
    "expert_checksum",
    "expert_pack",
    "expert_unpack",
    "packed_size_bytes",
    "quota_remap",
    "route_count",
]
