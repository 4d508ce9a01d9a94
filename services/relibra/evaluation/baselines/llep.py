"""LLEP, least-loaded expert parallelism: what is too much for an expert's rank spills to the least loaded ranks.

After Salesforce's LeastLoadedEP (arXiv 2601.17111, code at commit 11730c8), written anew. It may spill to any rank of
the EP group, makes as many copies as it needs, and decides in every cell, when the router has run.

M rows, L layers, E experts, R EP ranks, X pieces.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known, from_pieces
from relibra.planning.job import Cluster, Model

MAX_TOKENS_FACTOR = 1.0
"""alpha: a rank takes this times the mean. The paper's setting."""
MIN_TOKENS = 1024
"""m: smaller spills are not worth a matrix multiplication, unless they are all that is left."""
MIN_IMBALANCE = 1.3
"""lambda: cells that are more even than this are left alone."""
DECISION_US = 200.0
"""The published planner takes 280 to 600 us a layer on a CPU; a fast one is assumed."""


def llep(
    load_MLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    max_tokens_factor: float = MAX_TOKENS_FACTOR,
    min_tokens: int = MIN_TOKENS,
) -> Assignment:
    """Spill in every cell that is uneven; homes are those of plain expert parallelism."""
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
    return spill(
        tokens_E, home_E.tolist(), num_ranks, max(1, int(max_tokens_factor * (total // num_ranks))), min_tokens
    )


def spill(
    tokens_E: list[int], home_E: list[int], num_ranks: int, max_tokens: int, min_tokens: int
) -> list[tuple[int, int, int]]:
    """Assign experts, heaviest first: home as far as there is room, the rest to the least loaded.

    A rank's load counts what it was assigned and what its own experts will bring that have not had their turn.

    Args:
        tokens_E: load of every expert.
        home_E: its rank.
        num_ranks: R.
        max_tokens: most tokens of a rank, as far as possible.
        min_tokens: fewest tokens of a spill that leaves some over.

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
        while left and others:
            others.sort(key=load_R.__getitem__)
            for rank in others:
                chunk = min(left, max_tokens - load_R[rank])
                if chunk > 0 and (chunk >= min_tokens or chunk == left):
                    break
            else:
                rank, chunk = others[0], left  # nobody has room: the least loaded takes it all
            give(expert, rank, chunk)
            left -= chunk
        if left:
            give(expert, home, left)
    return pieces
