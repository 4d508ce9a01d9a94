"""The rank that each row of a step starts from, one entry per row: `row_ranges` written out.

N rows of a step, tokens and padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.routing.row_ranges import row_ranges
from relibra.routing.token_layout import ParallelLayout, TokenPacking


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """The rows of a step, `[N]` each."""

    sequence_N: NDArray[np.int64]
    """The sequence of each row; -1 for padding."""
    position_N: NDArray[np.int64]
    """The token of the sequence; for padding, the place in its run of padding."""
    micro_batch_N: NDArray[np.int64]
    source_rank_N: NDArray[np.int64]
    ep_group_N: NDArray[np.int64]


def row_table(
    micro_batches: Sequence[Sequence[Sequence[int]]],
    length_S: NDArray[np.integer],
    layout: ParallelLayout,
    packing: TokenPacking,
    num_rows: int | None = None,
) -> RowTable:
    """Return the rows of a step from its micro-batches, `[data][M][...]`; see `row_ranges`."""
    rows: list[tuple[int, int, int, int, int]] = []
    for data_rank, of_rank in enumerate(micro_batches):
        for micro_batch, sequences in enumerate(of_rank):
            if not sequences:
                continue
            length_B = np.asarray(length_S)[list(sequences)]
            ranges = row_ranges(length_B, layout, packing, data_rank, num_rows)
            columns = (ranges.place_G, ranges.first_G, ranges.end_G, ranges.source_rank_G, ranges.ep_group_G)
            for place, first, end, source_rank, ep_group in zip(*(column.tolist() for column in columns), strict=True):
                sequence, length = (sequences[place], int(length_B[place])) if place >= 0 else (-1, 0)
                for position in range(first, end):
                    row = (sequence, position) if position < length else (-1, position - length)
                    rows.append((*row, micro_batch, source_rank, ep_group))
    sequence_N, position_N, micro_batch_N, source_rank_N, ep_group_N = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return RowTable(
        sequence_N=sequence_N,
        position_N=position_N,
        micro_batch_N=micro_batch_N,
        source_rank_N=source_rank_N,
        ep_group_N=ep_group_N,
    )
