"""Every operation as kernel launches: allocate the results, fill the tables, hand the launches to `run`.

Nothing here waits for a device or needs one: the tests pass CPU tensors and a `run` that emulates the kernels. The
callers have checked the arguments, and all tensors are contiguous.

T tokens, E logical experts, P physical slots, C chunks of tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_int32, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.kernels.launch import (
    MAX_GRADIENTS,
    MAX_SEGMENTS,
    MAX_TARGETS,
    TILE_BYTES,
    TILE_ELEMENTS,
    Gradients,
    Launch,
    Routing,
    Run,
    Segments,
)
from relibra.kernels.packed import packed_offsets, packed_size_bytes

_CHUNK_TOKENS = 32
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Segment = tuple[int, int, int]
"""Address to read, address to write, number of bytes."""


def expert_pack(run: Run, tensors: Sequence[Tensor]) -> Tensor:
    """Run `reference.expert_pack` on the device of the tensors."""
    buffer = torch.empty(packed_size_bytes(tensors), dtype=torch.uint8, device=tensors[0].device)
    places = [buffer.data_ptr() + offset for offset in packed_offsets(tensors)]
    _copy(run, [(t.data_ptr(), place, t.nbytes) for t, place in zip(tensors, places, strict=True)], zero_padding=True)
    return buffer


def expert_unpack(run: Run, buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Run `reference.expert_unpack`."""
    places = [buffer.data_ptr() + offset for offset in packed_offsets(into)]
    _copy(run, [(place, t.data_ptr(), t.nbytes) for t, place in zip(into, places, strict=True)], zero_padding=False)


def grad_accumulate(run: Run, into: Sequence[Tensor], gradients: Sequence[Tensor | Sequence[Tensor]]) -> None:
    """Run `reference.grad_accumulate`; all gradients of one target have the same dtype."""
    for targets in _groups(into, map(_Added.of, gradients)):
        table, num = Gradients(num_targets=len(targets)), len(targets)
        addresses, first_gradient, first_tile = list[int](), [0], [0]
        for target, added in targets:
            addresses += added.addresses
            first_gradient.append(len(addresses))
            first_tile.append(first_tile[-1] + -(-target.numel() // TILE_ELEMENTS))
        table.into[:num] = [target.data_ptr() for target, _ in targets]
        table.num_elements[:num] = [target.numel() for target, _ in targets]
        table.gradient[: len(addresses)] = addresses
        table.first_gradient[: num + 1], table.first_tile[: num + 1] = first_gradient, first_tile
        num_tiles, element = first_tile[-1], _ELEMENTS[targets[0][1].dtype]
        args = (table, c_int32(element))
        run(Launch(kernel="grad_accumulate", num_blocks=(num_tiles, 1), num_threads=256, args=args))


def quota_remap(
    run: Run, probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
) -> tuple[Tensor, Tensor]:
    """Run `reference.quota_remap`, with experts and shares as int32."""
    (num_tokens, num_experts), (num_slots,) = probs_TE.shape, slot_expert_P.shape
    probs_TP = probs_TE.new_empty(num_tokens, num_slots)
    routing_map_TP = routing_map_TE.new_empty(num_tokens, num_slots)
    if probs_TP.numel() == 0:
        return probs_TP, routing_map_TP
    num_chunks = -(-num_tokens // _CHUNK_TOKENS)
    # One allocation for the ranges of the slots, int64 [2, P], and the counts, int32 [C, E].
    ranges_bytes = 16 * num_slots
    scratch = slot_expert_P.new_empty(ranges_bytes // 4 + num_chunks * num_experts)
    begin, end, count = (scratch.data_ptr() + offset for offset in (0, ranges_bytes // 2, ranges_bytes))
    shape = (c_int32(num_tokens), c_int32(num_experts))
    run(
        Launch(
            kernel="quota_count",
            num_blocks=(num_chunks, -(-num_experts // 128)),
            num_threads=128,
            args=(routing_map_TE, *shape, c_void_p(count)),
        )
    )
    run(
        Launch(
            kernel="quota_prefix",
            num_blocks=(-(-num_experts // 32), 1),
            num_threads=1024,
            args=(
                c_void_p(count),
                c_int32(num_chunks),
                c_int32(num_experts),
                slot_expert_P,
                share_P,
                c_int32(num_slots),
                c_void_p(begin),
                c_void_p(end),
            ),
        )
    )
    routing = Routing(slot_expert_P.data_ptr(), count, begin, end, num_tokens, num_experts, num_slots)
    element_bytes = c_int32(probs_TE.element_size())
    run(
        Launch(
            kernel="quota_place",
            num_blocks=(num_chunks, -(-num_slots // 128)),
            num_threads=128,
            args=(routing, probs_TE, routing_map_TE, probs_TP, routing_map_TP, element_bytes),
        )
    )
    return probs_TP, routing_map_TP


def quota_give_back(
    run: Run, grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int
) -> Tensor:
    """Run `reference.quota_give_back`, with experts as int32."""
    num_tokens, num_slots = grad_TP.shape
    grad_TE = grad_TP.new_zeros(num_tokens, num_experts)
    if grad_TP.numel():
        shape = (c_int32(num_tokens), c_int32(num_experts), c_int32(num_slots))
        run(
            Launch(
                kernel="quota_give_back",
                num_blocks=(-(-num_tokens // _CHUNK_TOKENS), -(-num_slots // 128)),
                num_threads=128,
                args=(grad_TP, routing_map_TP, slot_expert_P, *shape, grad_TE, c_int32(grad_TP.element_size())),
            )
        )
    return grad_TE


def _copy(run: Run, segments: Sequence[Segment], *, zero_padding: bool) -> None:
    for table, num_tiles in _tables(segments):
        args = (table, c_int32(zero_padding))
        run(Launch(kernel="expert_copy", num_blocks=(num_tiles, 1), num_threads=256, args=args))


def _tables(segments: Sequence[Segment]) -> Iterator[tuple[Segments, int]]:
    """Yield tables of the segments that are not empty, each with its number of tiles."""
    segments = [segment for segment in segments if segment[2]]
    for first in range(0, len(segments), MAX_SEGMENTS):
        some = segments[first : first + MAX_SEGMENTS]
        table, num_tiles = Segments(num_segments=len(some)), 0
        sources, targets, sizes_bytes, first_tile = table.source, table.target, table.size_bytes, table.first_tile
        for i, (source, target, size_bytes) in enumerate(some):
            sources[i], targets[i], sizes_bytes[i] = source, target, size_bytes
            num_tiles += -(-size_bytes // TILE_BYTES)
            first_tile[i + 1] = num_tiles
        yield table, num_tiles


class _Added(NamedTuple):
    """The gradients of one target."""

    addresses: Sequence[int]
    dtype: torch.dtype

    @classmethod
    def of(cls, gradients: Tensor | Sequence[Tensor]) -> "_Added":
        if not isinstance(gradients, Tensor):
            return cls([each.data_ptr() for each in gradients], gradients[0].dtype if gradients else torch.float32)
        first, step = gradients.data_ptr(), gradients.stride(0) * gradients.element_size()
        return cls([first + i * step for i in range(gradients.shape[0])], gradients.dtype)


def _groups(into: Sequence[Tensor], gradients: Iterable[_Added]) -> Iterator[list[tuple[Tensor, _Added]]]:
    """Yield the content of each table, in order; a target with very many gradients spans several tables."""
    group: list[tuple[Tensor, _Added]] = []
    num_gradients = 0
    for target, added in zip(into, gradients, strict=True):
        for first in range(0, len(added.addresses) if target.numel() else 0, MAX_GRADIENTS):
            some = added._replace(addresses=added.addresses[first : first + MAX_GRADIENTS])
            is_full = len(group) == MAX_TARGETS or num_gradients + len(some.addresses) > MAX_GRADIENTS
            if group and (is_full or some.dtype != group[0][1].dtype):
                yield group
                group, num_gradients = [], 0
            group.append((target, some))
            num_gradients += len(some.addresses)
    if group:
        yield group
