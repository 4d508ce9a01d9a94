"""The places of tensors in a packed buffer."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.kernels import ALIGNMENT_BYTES, expert_pack
from relibra.kernels.packed import packed_offsets, packed_size_bytes, packed_views

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


@given(_SIZES)
def test_views_show_the_packed_tensors_and_write_into_the_buffer(sizes: list[tuple[int, torch.dtype]]) -> None:
    tensors = [torch.arange(num).to(dtype) for num, dtype in sizes]
    buffer = expert_pack(tensors, torch.device("cpu"))
    views = packed_views(buffer, tensors)
    assert all(map(torch.equal, views, tensors))
    for view in views:
        view += 1
    assert all(map(torch.equal, packed_views(buffer, tensors), [tensor + 1 for tensor in tensors]))
