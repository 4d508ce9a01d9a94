"""LLEP, least-loaded expert parallelism: tokens that are too many for an expert's rank spill to the least loaded ranks.

Reimplements Salesforce's LeastLoadedEP (arXiv 2601.17111, code at commit 11730c8). LLEP may spill to any rank of the EP
group, makes as many copies as it needs, and decides in every cell, after the router has run.

M rows, L layers, E experts, R EP ranks, X pieces.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known, from_pieces
from relibra.planning.job import Cluster, Model

MAX_TOKENS_FACTOR = 1.0
"""alpha: a rank takes at most this times the mean. The paper's setting."""
MIN_TOKENS = 1024
"""m: a smaller spill is not worth a matrix multiplication, unless nothing else is left to spill."""
MIN_IMBALANCE = 1.3
"""lambda: LLEP leaves cells alone whose imbalance is below this."""
DECISION_US = 200.0
"""The published planner takes 280 to 600 us a layer on a CPU; this assumes a fast one."""


def llep(
    load_MLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    max_tokens_factor: float = MAX_TOKENS_FACTOR,
    min_tokens: int = MIN_TOKENS,
) -> Assignment:
    """Spill in every uneven cell; the homes are those of plain expert parallelism."""
    home_LE = cluster.identity_placement(model)
    pieces = [
        (row, layer, expert, rank, tokens)
        for row, load_LE in enumerate(load_MLE)
        for layer, load_E in enumerate(load_LE)
        for expert, rank, tokens in _cell(load_E, home_LE[layer], cluster.num_ranks, max_tokens_factor, min_tokens)
    ]
    piece_X5 = np.array(pieces, dtype=np.int64).reshape(-1, 5)
    return from_pieces(piece_X5[:, :4], piece_X5[:, 4], home_LE, len(load_MLE), Known.ROUTED, DECISION_US)


def _cell(
    load_E: NDArray[np.integer], home_E: NDArray[np.int32], num_ranks: int, max_tokens_factor: float, min_tokens: int
) -> list[tuple[int, int, int]]:
    tokens_E, total = load_E.tolist(), int(load_E.sum())
    native_R = np.bincount(home_E, weights=load_E, minlength=num_ranks)
    if native_R.max() * num_ranks < MIN_IMBALANCE * total:
        return [(expert, int(home_E[expert]), tokens) for expert, tokens in enumerate(tokens_E) if tokens]
    balanced = total // num_ranks
    max_tokens = max(1, int(max_tokens_factor * balanced) if balanced else total)
    return spill(tokens_E, home_E.tolist(), num_ranks, max_tokens, min_tokens)


def spill(
    tokens_E: list[int], home_E: list[int], num_ranks: int, max_tokens: int, min_tokens: int
) -> list[tuple[int, int, int]]:
    """Assign the experts' tokens, heaviest expert first: to the home while it has room, the rest to the least loaded.

    The load of a rank counts its assigned tokens and all tokens of its own experts that are not assigned yet.

    Args:
        tokens_E: the load of every expert.
        home_E: the home rank of every expert.
        num_ranks: R.
        max_tokens: the most tokens of a rank, as far as possible.
        min_tokens: the fewest tokens of a spill that does not exhaust the expert.

    Returns:
        (expert, rank, tokens).
    """
    load_R = [0] * num_ranks
    for expert, tokens in enumerate(tokens_E):
        load_R[home_E[expert]] += tokens
    pieces = []

    def give(expert: int, rank: int, tokens: int) -> None:
        pieces.append((expert, rank, tokens))
        load_R[rank] += tokens

    for expert in sorted(range(len(tokens_E)), key=lambda expert: -tokens_E[expert]):
        home, left = home_E[expert], tokens_E[expert]
        load_R[home] -= left
        kept = min(left, max(0, max_tokens - load_R[home]))
        if kept:
            give(expert, home, kept)
            left -= kept
        others = [rank for rank in range(num_ranks) if rank != home]
        lightest = sorted(others, key=load_R.__getitem__)
        while left and others:
            if kept:  # the published code orders the ranks only once if the home takes no part
                lightest = sorted(others, key=load_R.__getitem__)
            for rank in lightest:
                chunk = min(left, max_tokens - load_R[rank])
                if chunk > 0 and (chunk >= min_tokens or chunk == left):
                    break
            else:
                rank, chunk = lightest[0], left  # no rank has room: the least loaded takes all of it
            give(expert, rank, chunk)
            left -= chunk
        if left:
            give(expert, home, left)
    return pieces
