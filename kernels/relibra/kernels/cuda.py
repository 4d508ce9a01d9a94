"""Every operation as kernel launches: allocate the results, fill the tables, hand the launches to `run`.

Nothing here waits for a device or needs one: the tests pass CPU tensors and a `run` that emulates the kernels. The
callers have checked the arguments, and all tensors are contiguous.

T tokens, E logical experts, P physical slots, C chunks of tokens.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.kernels.launch import (
    MAX_GRADIENTS,
    MAX_SEGMENTS,
    MAX_TARGETS,
    ROUTING,
    TILE_BYTES,
    TILE_ELEMENTS,
    Arguments,
    Gradients,
    Launch,
    Run,
    Segments,
    table_arguments,
)
from relibra.kernels.packed import packed_offsets, packed_size_bytes

_CHUNK_TOKENS = 32
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_COUNT = Arguments("P", "i", "i", "P")
_PREFIX = Arguments("P", "i", "i", "P", "P", "i", "P", "P")
_PLACE = Arguments(ROUTING, "P", "P", "P", "P", "i")
_GIVE_BACK = Arguments("P", "P", "P", "i", "i", "i", "P", "i")
_SPLIT = Arguments("P", "P", "P", "P", "i", "i", "i", "i", "i", "i")

Segment = tuple[int, int, int]
"""Address to read, address to write, number of bytes."""


def expert_pack(run: Run, tensors: Sequence[Tensor], buffer: Tensor | None = None) -> Tensor:
    """Run `reference.expert_pack` on the device of the tensors."""
    if buffer is None:
        buffer = torch.empty(packed_size_bytes(tensors), dtype=torch.uint8, device=tensors[0].device)
    places = [buffer.data_ptr() + offset for offset in packed_offsets(tensors)]
    _copy(run, [(t.data_ptr(), place, t.nbytes) for t, place in zip(tensors, places, strict=True)], zero_padding=True)
    return buffer


def expert_unpack(run: Run, buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Run `reference.expert_unpack`."""
    places = [buffer.data_ptr() + offset for offset in packed_offsets(into)]
    _copy(run, [(place, t.data_ptr(), t.nbytes) for t, place in zip(into, places, strict=True)], zero_padding=False)


def grad_accumulate(run: Run, into: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Run `reference.grad_accumulate`; all gradients of one target have the same dtype."""
    added = [_Added.of(gradient) for gradient in gradients]
    together = _sums.of(tuple([(t.numel(), len(a.addresses), a.dtype) for t, a in zip(into, added, strict=True)]))
    if together is not None:
        run(together.launch([t.data_ptr() for t in into], [address for a in added for address in a.addresses]))
        return
    for targets in _groups(into, added):
        sums = _Sums([(target.numel(), len(some.addresses), some.dtype) for target, some in targets])
        addresses = [address for _, some in targets for address in some.addresses]
        run(sums.launch([target.data_ptr() for target, _ in targets], addresses))


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
    begin = scratch.data_ptr()
    end, count = begin + ranges_bytes // 2, begin + ranges_bytes
    routed, slots = routing_map_TE.data_ptr(), slot_expert_P.data_ptr()
    arguments = _COUNT.pack(routed, num_tokens, num_experts, count)
    run(Launch("quota_count", (num_chunks, -(-num_experts // 128)), 128, arguments))
    arguments = _PREFIX.pack(count, num_chunks, num_experts, slots, share_P.data_ptr(), num_slots, begin, end)
    run(Launch("quota_prefix", (-(-num_experts // 32), 1), 1024, arguments))
    routing = slots, count, begin, end, num_tokens, num_experts, num_slots
    placed = probs_TE.data_ptr(), routed, probs_TP.data_ptr(), routing_map_TP.data_ptr(), probs_TE.element_size()
    run(Launch("quota_place", (num_chunks, -(-num_slots // 128)), 128, _PLACE.pack(*routing, *placed)))
    return probs_TP, routing_map_TP


def quota_give_back(
    run: Run, grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int
) -> Tensor:
    """Run `reference.quota_give_back`, with experts as int32."""
    num_tokens, num_slots = grad_TP.shape
    grad_TE = grad_TP.new_zeros(num_tokens, num_experts)
    if grad_TP.numel():
        arguments = _GIVE_BACK.pack(
            grad_TP.data_ptr(),
            routing_map_TP.data_ptr(),
            slot_expert_P.data_ptr(),
            num_tokens,
            num_experts,
            num_slots,
            grad_TE.data_ptr(),
            grad_TP.element_size(),
        )
        run(Launch("quota_give_back", (-(-num_tokens // _CHUNK_TOKENS), -(-num_slots // 128)), 128, arguments))
    return grad_TE


def token_split(run: Run, counts_RE: Tensor, slot_expert_P: Tensor, gpus_per_node: int, rank: int) -> Tensor:
    """Run `ops.token_split`, with counts and experts as int32."""
    (num_ranks, num_experts), (num_slots,) = counts_RE.shape, slot_expert_P.shape
    share_P = torch.empty_like(slot_expert_P)
    sums_bytes = 16 * num_experts
    sums = counts_RE.new_empty(sums_bytes // 4)  # int64 [E, 2]
    arguments = _SPLIT.pack(
        counts_RE.data_ptr(),
        slot_expert_P.data_ptr(),
        sums.data_ptr(),
        share_P.data_ptr(),
        num_ranks,
        num_experts,
        gpus_per_node,
        num_experts // num_ranks,
        num_slots // num_ranks,
        rank,
    )
    run(Launch("token_split", (num_ranks // gpus_per_node, 1), 128, arguments))
    return share_P


def _copy(run: Run, segments: Sequence[Segment], *, zero_padding: bool) -> None:
    for table, num_tiles in _tables(segments):
        run(Launch("expert_copy", (num_tiles, 1), 256, table_arguments(table, zero_padding)))


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
    def of(cls, gradients: Sequence[Tensor]) -> "_Added":
        dtype = gradients[0].dtype if gradients else torch.float32
        return cls([gradient.data_ptr() for gradient in gradients], dtype)


Target = tuple[int, int, torch.dtype]
"""A target of `grad_accumulate`: its number of elements, and the number and the dtype of its gradients."""


class _Sums:
    """The table of one launch of `grad_accumulate`: all of it but the addresses, which each launch writes into it.

    Args:
        targets: as many as fit; their gradients have one dtype.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        table, num = Gradients(num_targets=len(targets)), len(targets)
        first_gradient, first_tile = [0], [0]
        for num_elements, num_gradients, _ in targets:
            first_gradient.append(first_gradient[-1] + num_gradients)
            first_tile.append(first_tile[-1] + -(-num_elements // TILE_ELEMENTS))
        table.num_elements[:num] = [num_elements for num_elements, _, _ in targets]
        table.first_gradient[: num + 1], table.first_tile[: num + 1] = first_gradient, first_tile
        self._into, self._gradient, self._num_blocks = table.into, table.gradient, (first_tile[-1], 1)
        self._arguments = table_arguments(table, _ELEMENTS[targets[0][2]])

    def launch(self, into: Sequence[int], gradients: Sequence[int]) -> Launch:
        """Return the launch for these addresses: of the targets, and of all their gradients in turn."""
        self._into[: len(into)] = into
        self._gradient[: len(gradients)] = gradients
        return Launch("grad_accumulate", self._num_blocks, 256, self._arguments)


class _KnownSums(threading.local):
    """The tables of this thread for targets that fit into one launch."""

    def __init__(self) -> None:
        self._known: dict[tuple[Target, ...], _Sums | None] = {}

    def of(self, targets: tuple[Target, ...]) -> _Sums | None:
        """Return the table of these targets; None if they do not fit, or some have nothing to add."""
        if targets not in self._known:
            num_elements, num_gradients, dtypes = zip(*targets, strict=True)
            fit = len(targets) <= MAX_TARGETS and sum(num_gradients) <= MAX_GRADIENTS and len(set(dtypes)) == 1
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[targets] = _Sums(targets) if fit and all(num_elements) and all(num_gradients) else None
        return self._known[targets]


_MOST_KNOWN = 1024
"""Tables of 4 KiB that a thread remembers. There are few unless the cells of a step differ very much."""
_sums = _KnownSums()


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
