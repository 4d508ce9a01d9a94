"""The parts of a rank's batch: rows that start from one EP rank together, including fillers.

Context and sequence parallelism split a sequence over ranks, and padding belongs to no sequence. A plan therefore needs
to know how many rows each source rank has for each expert, and not which sequences they come from.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.filler import missing_tokens
from relibra.routing.part_counts import PartCounts, count_parts
from relibra.routing.row_ranges import RowRanges, row_ranges
from relibra.routing.token_layout import check_dealt
from relibra.steps.rank_batch import RankBatch, TrainerLayout

_MAX_THREADS = 8
"""Counting threads of one rank; the ranks of a machine count at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankPart:
    """All rows of a micro-batch that start from one EP rank."""

    micro_batch: int
    ep_group: int
    source_rank: int
    counts: PartCounts


def count_rank(batch: RankBatch, data_rank: int, trainer: TrainerLayout) -> list[RankPart]:
    """Count the parts of one data-parallel rank, sorted by micro-batch, EP group and source rank.

    Rows whose experts the router will choose are left out, and so are parts that have no other rows. Threads count
    several micro-batches at once.

    Args:
        batch: the batch that the rank trains on.
        data_rank: the data-parallel rank.
        trainer: how the trainer assigns tokens to ranks.

    Raises:
        InvalidInput: the rank does not exist, a sequence is missing from the micro-batches or listed twice, the
            framework would refuse a sequence, or padded rows do not split evenly.
    """
    if not 0 <= data_rank < trainer.ranks.data:
        raise InvalidInput.of("data_rank", expected=f"0 to {trainer.ranks.data - 1}", got=data_rank)
    check_dealt(_of_all_ranks(batch, data_rank, trainer), len(batch.routings), trainer.ranks.data)
    if not batch.routings:
        raise InvalidInput.of("routings", expected="at least one sequence", got="none")
    for routing in batch.routings:
        missing_tokens(routing, trainer.filler_rule)
    length_S = np.array([routing.num_tokens for routing in batch.routings], dtype=np.int64)
    places = [
        (index, np.asarray(sequences, dtype=np.int64))
        for index, sequences in enumerate(batch.micro_batches)
        if len(sequences)
    ]
    ranges = [
        row_ranges(
            length_S[sequences],
            trainer.ranks,
            trainer.packing,
            data_rank,
            None if batch.num_rows_M is None else batch.num_rows_M[index],
        )
        for index, sequences in places
    ]

    def count(index: int, place_B: NDArray[np.int64], of_micro_batch: RowRanges) -> list[RankPart]:
        parts = count_parts([batch.routings[place] for place in place_B.tolist()], of_micro_batch, trainer.filler_rule)
        return [
            RankPart(micro_batch=index, ep_group=ep_group, source_rank=source_rank, counts=counts)
            for (ep_group, source_rank), counts in parts.items()
        ]

    with ThreadPoolExecutor(_num_threads(len(places)), thread_name_prefix="relibra-count") as pool:
        futures = [
            pool.submit(count, index, place_B, of_micro_batch)
            for (index, place_B), of_micro_batch in zip(places, ranges, strict=True)
        ]
        return [part for future in futures for part in future.result()]


def _num_threads(num_micro_batches: int) -> int:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MAX_THREADS, num_cores, num_micro_batches))


def _of_all_ranks(batch: RankBatch, data_rank: int, trainer: TrainerLayout) -> list[Sequence[Sequence[int]]]:
    # Other ranks have as many micro-batches, but they report their own sequences.
    nothing: list[list[int]] = [[] for _ in batch.micro_batches]
    return [batch.micro_batches if rank == data_rank else nothing for rank in range(trainer.ranks.data)]
