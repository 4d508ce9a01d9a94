"""The places of tensors in a packed buffer."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.kernels import ALIGNMENT_BYTES
from relibra.kernels.packed import packed_offsets, packed_size_bytes

_SIZES = st.lists(
    st.tuples(st.integers(0, 70), st.sampled_from([torch.uint8, torch.bfloat16, torch.float64])), max_size=6
)


@given(_SIZES)
def test_tensors_start_aligned_and_follow_one_another(sizes: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.empty(num, dtype=dtype) for num, dtype in sizes]
    offsets = packed_offsets(tensors)
    ends = [*offsets[1:], packed_size_bytes(tensors)] if tensors else []
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in offsets)
    assert all(
        0 <= end - offset - tensor.nbytes < ALIGNMENT_BYTES
        for tensor, offset, end in zip(tensors, offsets, ends, strict=True)
    )
