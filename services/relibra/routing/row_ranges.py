"""Runs of rows that start from one rank.

A sequence crosses few ranks, so a handful of ranges takes microseconds per micro-batch, and a table of rows would not.

B sequences of a micro-batch, C chunks of a sequence, T tensor-parallel ranks, G ranges.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.routing.token_layout import ParallelLayout, TokenPacking, check_chunks, check_shares, padded_lengths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowRanges:
    """The ranges of one micro-batch of one data-parallel rank, which together hold every row once, `[G]` each."""

    place_G: NDArray[np.int64]
    """The place of the sequence in the micro-batch; -1 for padding that follows the last sequence."""
    first_G: NDArray[np.int64]
    """The first token of the range; tokens beyond the length of the sequence are its padding."""
    end_G: NDArray[np.int64]
    """The end of the range, exclusive."""
    source_rank_G: NDArray[np.int64]
    ep_group_G: NDArray[np.int64]


def row_ranges(
    length_B: NDArray[np.integer],
    layout: ParallelLayout,
    packing: TokenPacking,
    data_rank: int,
    num_rows: int | None = None,
) -> RowRanges:
    """Return the ranges of a micro-batch of at least one sequence.

    Args:
        length_B: the number of tokens of each sequence.
        layout: the ranks.
        packing: how the micro-batch is packed and padded.
        data_rank: the data-parallel rank that trains on the micro-batch.
        num_rows: the rows to which the trainer pads the micro-batch; see `padded_lengths`.

    Raises:
        InvalidInput: the padded rows do not split evenly.
    """
    num_chunks = check_chunks(layout, packing)
    padded_B = padded_lengths(length_B, packing, num_chunks, num_rows)
    chunk_B = padded_B // num_chunks
    local_B = padded_B // layout.context
    base_B = np.cumsum(local_B) - local_B if packing.is_packed else np.zeros_like(local_B)
    num_local = int(local_B.sum() if packing.is_packed else local_B[0])
    num_tail = -num_local % packing.rank_multiple
    share = check_shares(num_local + num_tail, layout)

    chunk_C = np.arange(num_chunks)
    is_back_C = chunk_C >= layout.context
    context_C = np.where(is_back_C, num_chunks - 1 - chunk_C, chunk_C)
    local_BC = base_B[:, None] + np.where(is_back_C, chunk_B[:, None], 0)
    columns_BC = (
        np.broadcast_to(np.arange(len(padded_B))[:, None], local_BC.shape),
        chunk_C * chunk_B[:, None],
        np.broadcast_to(chunk_B[:, None], local_BC.shape),
        local_BC,
        np.broadcast_to(context_C, local_BC.shape),
    )
    # Padding after the last sequence is one more run of rows on every context-parallel rank.
    tail = np.arange(layout.context)
    columns_tail = (np.full_like(tail, -1), tail * 0, tail * 0 + num_tail, tail * 0 + num_local, tail)
    place, start, size, local, context = (
        np.concatenate([body.ravel(), end])[:, None] for body, end in zip(columns_BC, columns_tail, strict=True)
    )
    tensor_T = np.arange(layout.tensor)
    from_local = np.maximum(local, tensor_T * share)
    to_local = np.minimum(local + size, (tensor_T + 1) * share)
    is_range = to_local > from_local
    ep_rank = ((data_rank * layout.context + context) * layout.tensor + tensor_T) // layout.expert_tensor
    return RowRanges(
        place_G=np.broadcast_to(place, is_range.shape)[is_range],
        first_G=(start + from_local - local)[is_range],
        end_G=(start + to_local - local)[is_range],
        source_rank_G=(ep_rank % layout.expert)[is_range],
        ep_group_G=(ep_rank // layout.expert)[is_range],
    )
