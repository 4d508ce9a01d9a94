"""Counts of the parts of a micro-batch, straight from the arrays that a framework holds.

A part is all rows of one micro-batch that start from one EP rank, fillers included. This module reads every row
once and copies none.

T rows of a sequence, G ranges, L MoE layers, K top-k, E experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from relibra.routing.filler import Filler, FillerRule, filler_counts, missing_tokens
from relibra.routing.model_layers import ModelLayers
from relibra.routing.row_ranges import RowRanges
from relibra.routing.sequence_routing import SequenceRouting

Part = tuple[int, int]
"""The EP group and the source rank of a part."""


@dataclass(slots=True, eq=False)
class PartCounts:
    """The rows of one part."""

    counts_LE: NDArray[np.uint32]
    num_rows: int = 0


@dataclass(slots=True, eq=False)
class _Sums:
    layers: ModelLayers
    parts: dict[Part, PartCounts] = field(default_factory=dict)

    def part(self, part: Part, num_rows: int) -> NDArray[np.uint32]:
        """Return the counts of a part, to which the caller adds `num_rows` rows."""
        counts = self.parts.get(part)
        if counts is None:
            shape = (self.layers.num_moe_layers, self.layers.num_experts)
            counts = self.parts[part] = PartCounts(np.zeros(shape, dtype=np.uint32))
        counts.num_rows += num_rows
        return counts.counts_LE


def count_parts(routings: Sequence[SequenceRouting], ranges: RowRanges, rule: FillerRule) -> dict[Part, PartCounts]:
    """Count the rows that each source rank trains on in one micro-batch.

    Rows whose experts the router will choose are left out, and so are parts that have no other rows.

    Args:
        routings: the sequences of the micro-batch, in its order.
        ranges: the ranges of the micro-batch.
        rule: how the trainer fills tokens without a row, and padding.

    Returns:
        The counts of each part, sorted by EP group and source rank.

    Raises:
        InvalidInput: a sequence has a gap that the framework refuses, or an id that is no expert.
    """
    sums = _Sums(routings[0].layers)
    parts = list(zip(ranges.ep_group_G.tolist(), ranges.source_rank_G.tolist(), strict=True))
    for place, routing in enumerate(routings):
        mine = np.flatnonzero(ranges.place_G == place)
        mine = mine[np.argsort(ranges.first_G[mine])]
        _add_rows(sums, routing, ranges, mine, parts)
        _add_missing(sums, routing, ranges, mine, parts, rule)
    if rule.padding is not Filler.NATIVE:
        length_B = np.array([*(each.num_tokens for each in routings), 0])  # padding of a rank has no tokens before it
        length_G = length_B[ranges.place_G]
        first_G = np.maximum(ranges.first_G - length_G, 0)
        end_G = ranges.end_G - length_G
        for at in np.flatnonzero(end_G > first_G):
            first, end = int(first_G[at]), int(end_G[at])
            sums.part(parts[at], end - first)[...] += filler_counts(rule.padding, first, end, sums.layers)
    return dict(sorted(sums.parts.items()))


def _add_rows(
    sums: _Sums, routing: SequenceRouting, ranges: RowRanges, mine: NDArray[np.intp], parts: list[Part]
) -> None:
    bounds = np.searchsorted(routing.position_T, np.append(ranges.first_G[mine], routing.num_tokens)).tolist()
    for at, (first, end) in zip(mine.tolist(), pairwise(bounds), strict=True):
        if end > first:
            routing.add_counts(first, end, sums.part(parts[at], end - first))


def _add_missing(
    sums: _Sums,
    routing: SequenceRouting,
    ranges: RowRanges,
    mine: NDArray[np.intp],
    parts: list[Part],
    rule: FillerRule,
) -> None:
    gap_P, has_last = missing_tokens(routing, rule)
    last_P = np.arange(routing.num_tokens - 1, routing.num_tokens - has_last)
    for filler, position_P in ((rule.missing, gap_P), (rule.last_token, last_P)):
        if filler is None or filler is Filler.NATIVE or not len(position_P):
            continue
        at_P = mine[np.searchsorted(ranges.first_G[mine], position_P, side="right") - 1]
        bounds = [0, *(np.flatnonzero(np.diff(at_P)) + 1).tolist(), len(at_P)]
        for first, end in pairwise(bounds):
            counts_LE = sums.part(parts[at_P[first]], end - first)
            counts_LE += filler_counts(filler, first, end, sums.layers)
