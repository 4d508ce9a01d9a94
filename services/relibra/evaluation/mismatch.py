"""What a plan does with routing that is not the one it was made for.

A plan is a rule: each source rank sends its tokens of an expert, in token order, to every replica up to its share, and
the rest home. Counts are all that matters for balance.

M rows, L layers, E experts, R EP ranks, Y replicas of a row, S sequences.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, from_pieces
from relibra.planning.load import StepLoad
from relibra.planning.plan import Plan


def executed(plan: Plan, load: StepLoad) -> Assignment:
    """What ranks compute under `plan` when `load` is what the routers do; the shape of `load` is that of the plan."""
    home_LE, (num_layers, num_experts) = plan.home_rank_LE, plan.home_rank_LE.shape
    _, layer_Q, expert_Q, rank_Q = plan.quota_index_Q4.T
    replica_Y4 = plan.quota_index_Q4[home_LE[layer_Q, expert_Q] != rank_Q]
    share_YR = plan.shares.to_array()
    layer_X, expert_X = (each.ravel() for each in np.indices((num_layers, num_experts)))
    index, tokens = [], []
    for row in range(load.num_rows):
        left_RLE = load.source_load_RLE(row)
        of_row_Y = np.flatnonzero(replica_Y4[:, 0] == row)
        index_Y4, taken_Y = replica_Y4[of_row_Y], np.zeros(len(of_row_Y), dtype=np.int64)
        for turn_Y in _turns(index_Y4):
            place_Y = (index_Y4[turn_Y, 1], index_Y4[turn_Y, 2])
            taken_RY = np.minimum(share_YR[of_row_Y[turn_Y]].T, left_RLE[:, *place_Y])
            left_RLE[:, *place_Y] -= taken_RY
            taken_Y[turn_Y] = taken_RY.sum(axis=0)
        home_X4 = np.stack([np.full_like(layer_X, row), layer_X, expert_X, home_LE.ravel()], axis=1)
        index += [index_Y4, home_X4]
        tokens += [taken_Y, left_RLE.sum(axis=0).ravel()]
    return from_pieces(np.concatenate(index), np.concatenate(tokens), home_LE, load.num_rows)


def _turns(index_Y4: NDArray[np.integer]) -> list[NDArray[np.int64]]:
    """The first replicas of all experts, the second ones, and so on; replicas of an expert are side by side."""
    is_first_Y = np.ones(len(index_Y4), dtype=np.bool_)
    is_first_Y[1:] = (index_Y4[1:, 1:3] != index_Y4[:-1, 1:3]).any(axis=1)
    first_Y = np.maximum.accumulate(np.where(is_first_Y, np.arange(len(index_Y4)), 0))
    turn_Y = np.arange(len(index_Y4)) - first_Y
    return [np.flatnonzero(turn_Y == turn) for turn in range(int(turn_Y.max(initial=-1)) + 1)]


def rerouted(load: StepLoad, share: float, seed: int, *, evenly: bool = False) -> StepLoad:
    """Route this share of the copies of every sequence elsewhere: as others of the step are, or to any expert alike."""
    rng = np.random.default_rng(seed)
    counts_SLE = load.counts_SLE.astype(np.int64)
    total_LE = counts_SLE.sum(axis=0)
    other_LE = np.ones(total_LE.shape) if evenly else total_LE.astype(np.float64)
    other_LE /= other_LE.sum(axis=-1, keepdims=True)
    leaving_SLE = rng.binomial(counts_SLE, share)
    arriving_SLE = np.stack([rng.multinomial(leaving_LE.sum(axis=-1), other_LE) for leaving_LE in leaving_SLE])
    return replace(load, counts_SLE=counts_SLE - leaving_SLE + arriving_SLE)
