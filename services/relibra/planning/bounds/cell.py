"""A lower bound on the slowest rank of every cell, for any plan with the same placement and slots.

The bound is the smallest limit that the following argument does not rule out. Take `a` ranks of a node. Their tokens
stay with them, except those that leave in replicas on the other G - a ranks of the node. These have (G - a) * slots
slots, a replica has at most `limit` tokens, and an expert has at most one replica per rank. Every expert therefore
splits into pieces of `limit` tokens and one remainder, and at most the largest (G - a) * slots pieces leave. If more
than `a * limit` tokens stay, no plan reaches that limit. With a = G this bound is the mean load of the node; with no
slots and a = 1 it is the heaviest rank.

Where replicas have a least size, small experts matter: an expert below that size stays at home, and a rank takes no
replica if such experts leave it less room than that size below the limit.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, X experts of a node, K experts of a rank.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster

_MAX_SETS = 32
"""The most sets of ranks tried per node. Nodes of up to this many ranks try the `a` heaviest ranks for every a."""

_MANY = 16
"""If more pieces than this are wanted, they are found by sorting."""


def lower_bound_ML(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, min_tokens: int = 1
) -> NDArray[np.float64]:
    """Return tokens of the slowest rank that no plan goes below: whole numbers, float64 `[M, L]`.

    The sets of ranks tried are the `a` heaviest ranks of every node, for every a.

    Args:
        load_MLE: tokens of every expert in every cell.
        home_LE: the placement.
        cluster: nodes, ranks and slots.
        min_tokens: the least size of a replica. With 1, the bound holds for plans with and without a least size.
    """
    by_rank_LE = np.argsort(home_LE, axis=1, kind="stable")
    bound_ML = _bound_cells(
        np.ascontiguousarray(load_MLE),
        by_rank_LE.reshape(len(home_LE), cluster.num_nodes, cluster.gpus_per_node, -1),
        cluster.redundant_slots,
        max(min_tokens, 1),
    )
    return bound_ML.astype(np.float64)


@compile_once
def _largest_pieces(load_AK: NDArray[np.int64], num_pieces: int, limit: int, most: int, enough: int) -> int:
    """Return the tokens of the `num_pieces` largest pieces.

    A piece has at most `limit` tokens, and an expert at most `most` pieces, one for each rank that can take it. The
    search stops early once the pieces have `enough` tokens.
    """
    rest_Y = load_AK.copy().ravel()
    tokens, left = 0, num_pieces
    for expert in range(len(rest_Y)):
        if not left or tokens >= enough:
            return tokens
        if rest_Y[expert] >= limit:
            whole = min(rest_Y[expert] // limit, most, left)
            tokens += whole * limit
            left -= whole
            rest_Y[expert] = rest_Y[expert] - whole * limit if whole < most else 0
    if left > _MANY:
        rest_Y.sort()
        return tokens + int(rest_Y[-left:].sum())
    while left > 0 and tokens < enough:
        largest = np.argmax(rest_Y)
        tokens += rest_Y[largest]
        rest_Y[largest] = 0
        left -= 1
    return tokens


@compile_once
def _is_impossible(
    load_GK: NDArray[np.int64],
    held_G: NDArray[np.int64],
    stuck_G: NDArray[np.int64],
    slots: int,
    min_tokens: int,
    limit: int,
) -> bool:
    """Return whether no plan keeps all ranks of a node at `limit`.

    Ranks come heaviest first. `load_GK` has the experts that may leave, `stuck_G` the tokens of those that may not.
    """
    num_ranks = len(held_G)
    room, num_open, num_stuck = 0, 0, limit
    for rank in range(num_ranks):
        room -= held_G[rank]
        if slots > 0 and stuck_G[rank] + min_tokens <= limit:
            room += limit
            num_open += 1
            num_stuck = min(num_stuck, stuck_G[rank])
        else:
            room += min(limit, held_G[rank])
    if room < 0:
        return True
    held, step = 0, -(-num_ranks // _MAX_SETS)
    for rank in range(num_ranks - 1):
        held += held_G[rank]
        num_open -= slots > 0 and stuck_G[rank] + min_tokens <= limit
        too_much = held - (rank + 1) * limit
        if too_much <= 0:
            return False
        if rank % step:
            continue
        leaving = _largest_pieces(load_GK[: rank + 1], num_open * slots, limit - num_stuck, num_open, too_much)
        if leaving < too_much:
            return True
    return False


@compile_once
def _bound_cells(
    load_MLE: NDArray[np.int64], expert_LNGK: NDArray[np.int64], slots: int, min_tokens: int
) -> NDArray[np.int64]:
    num_rows, num_layers, _ = load_MLE.shape
    _, num_nodes, num_ranks, per_rank = expert_LNGK.shape
    bound_ML = np.zeros((num_rows, num_layers), dtype=np.int64)
    held_NG = np.empty((num_nodes, num_ranks), dtype=np.int64)
    load_GK = np.empty((num_ranks, per_rank), dtype=np.int64)
    stuck_G = np.empty(num_ranks, dtype=np.int64)
    for row in range(num_rows):
        for layer in range(num_layers):
            load_E = load_MLE[row, layer]
            bound = 0
            for node in range(num_nodes):
                for rank in range(num_ranks):
                    held_NG[node, rank] = 0
                    for expert in expert_LNGK[layer, node, rank]:
                        held_NG[node, rank] += load_E[expert]
                bound = max(bound, -(-held_NG[node].sum() // num_ranks))
            for node in range(num_nodes):
                most = held_NG[node].max()
                if most <= bound:
                    continue
                heaviest_G = np.argsort(-held_NG[node], kind="mergesort")
                held_G = held_NG[node][heaviest_G]
                for place in range(num_ranks):
                    stuck_G[place] = 0
                    for index in range(per_rank):
                        load = load_E[expert_LNGK[layer, node, heaviest_G[place], index]]
                        load_GK[place, index] = load if load >= min_tokens else 0
                        stuck_G[place] += load - load_GK[place, index]
                too_low = bound - 1
                reached = bound
                while _is_impossible(load_GK, held_G, stuck_G, slots, min_tokens, reached):
                    too_low = reached
                    reached = (reached + 1 + most) // 2
                while reached - too_low > 1:
                    middle = (too_low + reached) // 2
                    if _is_impossible(load_GK, held_G, stuck_G, slots, min_tokens, middle):
                        too_low = middle
                    else:
                        reached = middle
                bound = reached
            bound_ML[row, layer] = bound
    return bound_ML
