"""The token copies that a plan expects from every source rank, small enough to send: experts are folded into buckets.

Counts of every expert by source rank would be as large as a plan. Buckets are enough to notice routing that differs:
tokens that go to experts of other buckets change the counts, and equal routing never does.

M rows, L layers, E experts, R EP ranks, B buckets.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.load import StepLoad

NUM_BUCKETS = 16


def folded(counts_xE: NDArray[np.integer], num_buckets: int = NUM_BUCKETS) -> NDArray[np.int64]:
    """Sum the last axis by bucket, int64 `[..., B]`: bucket b of B holds the experts e with e mod B = b.

    B is `num_buckets`, or E if there are fewer experts.
    """
    num_experts = counts_xE.shape[-1]
    num_buckets = min(num_buckets, num_experts)
    counts_xB = np.zeros((*counts_xE.shape[:-1], num_buckets), dtype=np.int64)
    for first in range(0, num_experts, num_buckets):
        of_turn = counts_xE[..., first : first + num_buckets]
        counts_xB[..., : of_turn.shape[-1]] += of_turn.astype(np.int64, copy=False)
    return counts_xB


def source_load(load: StepLoad) -> NDArray[np.int64]:
    """Return the token copies that every source rank has in every cell, by bucket, int64 `[R, M, L, B]`."""
    _, num_layers, num_experts = load.counts_SLE.shape
    num_buckets = min(NUM_BUCKETS, num_experts)
    load_RMLB = np.zeros((load.num_ranks, load.num_rows, num_layers, num_buckets), dtype=np.int64)
    for counts_LE, row, rank in zip(load.counts_SLE, load.row_S, load.source_rank_S, strict=True):
        load_RMLB[rank, row] += folded(counts_LE)
    return load_RMLB
