"""A lower bound on the slowest rank of every cell, for any plan with the same placement and slots.

The bound is the smallest limit that the following argument does not rule out. Take `a` ranks of a node. Their tokens
stay with them but for those that leave in replicas on the node's other G - a ranks, which have (G - a) * slots slots;
a replica has at most `limit` tokens, and an expert at most one replica a rank. So out of every expert come pieces of
`limit` tokens and one remainder, the largest (G - a) * slots pieces leave, and if what stays is more than `a * limit`,
no plan reaches that limit. With a = G this is the mean load of the node, with no slots and a = 1 the heaviest rank.

Small experts count where replicas have a least size: an expert below it stays at home, and a rank that such experts
fill up to less than that size below the limit takes no replica.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, X experts of a node, K experts of a rank.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.job import Cluster

_MAX_SETS = 32
"""Sets of ranks tried per node: all the heaviest a, for nodes of up to as many ranks."""

_MANY = 16
"""More pieces than this are found by sorting."""


def lower_bound_ML(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, min_tokens: int = 1
) -> NDArray[np.float64]:
    """Tokens of the slowest rank that no plan goes below: whole numbers, float64 `[M, L]`.

    The `a` ranks tried are the heaviest ones of every node, for every a.

    Args:
        load_MLE: tokens of every expert.
        home_LE: the placement.
        cluster: nodes, ranks and slots.
        min_tokens: the least size of a replica; with 1 the bound holds for plans without such a rule too.
    """
    by_rank_LE = np.argsort(home_LE, axis=1, kind="stable")
    bound_ML = _bound_cells(
        np.ascontiguousarray(load_MLE),
        by_rank_LE.reshape(len(home_LE), cluster.num_nodes, cluster.gpus_per_node, -1),
        cluster.redundant_slots,
        max(min_tokens, 1),
    )
    return bound_ML.astype(np.float64)


@compiled
def _largest_pieces(load_AK: NDArray[np.int64], num_pieces: int, limit: int, most: int, enough: int) -> int:
    """Tokens of the largest pieces of at most `limit` tokens, no more of an expert than ranks to go to (`most`).

    Stops early where they are `enough`.
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


@compiled
def _is_impossible(
    load_GK: NDArray[np.int64],
    held_G: NDArray[np.int64],
    stuck_G: NDArray[np.int64],
    slots: int,
    min_tokens: int,
    limit: int,
) -> bool:
    """Whether no plan keeps the ranks of a node, heaviest first, at `limit`; `load_GK` has what may leave."""
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


@compiled
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
