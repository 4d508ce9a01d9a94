"""Replicas and quotas of every cell: which hot experts are copied to which neighbours, and how many tokens go along.

The slowest rank of a cell is brought down to a *limit* in tokens, the smallest one for which `_fill_node` succeeds on
every node; binary search finds it, as UltraEP does. Filling is Walker's alias method turned to balance: the lightest
rank is filled up to the limit from one expert of a heavier one, is then finished, and so one transfer a rank is
enough where experts are large. The donor may fall below the limit and be filled in turn. Filling only what donors have
too much, as UltraEP and most greedy schemes do, runs out of slots long before.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, X experts of a node, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.topology import Cluster, PlanParams

_HEAVIEST_DONOR, _SMALLEST_EXPERT = 0, 1
_RULES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Who computes what: `index_Q4` int32 (row, layer, expert, rank), sorted and unique; `tokens_Q` int64, at least 1.

    An expert that replicas took over in full has no line for its home.
    """

    index_Q4: NDArray[np.int32]
    tokens_Q: NDArray[np.int64]


def replicate(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, params: PlanParams
) -> tuple[Quotas, str]:
    """Choose replicas and quotas under a placement; return them and why.

    In every cell the slowest rank is at most the one without replicas. Nodes below the slowest one get no more replicas
    than it takes to stay below it.
    """
    _, replica_Q4, replica_tokens_Q = _solve(load_MLE, home_LE, cluster, params)
    kept_MLE = load_MLE.copy()
    np.subtract.at(kept_MLE, tuple(replica_Q4[:, :3].T), replica_tokens_Q)
    row_Q, layer_Q, expert_Q = np.nonzero(kept_MLE)
    home_Q4 = np.stack([row_Q, layer_Q, expert_Q, home_LE[layer_Q, expert_Q]], axis=1).astype(np.int32)
    index_Q4 = np.concatenate([home_Q4, replica_Q4])
    tokens_Q = np.concatenate([kept_MLE[row_Q, layer_Q, expert_Q], replica_tokens_Q])
    bounds = (*load_MLE.shape, cluster.num_ranks)
    order_Q = np.argsort(np.ravel_multi_index(tuple(index_Q4.T.astype(np.int64)), bounds), kind="stable")
    num_cells, share = load_MLE[..., 0].size, replica_tokens_Q.sum() / max(int(load_MLE.sum()), 1)
    reason = f"{len(replica_Q4) / num_cells:.1f} replicas a cell compute {share:.1%} of the tokens"
    return Quotas(index_Q4=index_Q4[order_Q], tokens_Q=tokens_Q[order_Q]), reason


def slowest_rank_ML(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, params: PlanParams
) -> NDArray[np.int64]:
    """Tokens of the slowest rank that `replicate` would leave in every cell."""
    return _solve(load_MLE, home_LE, cluster, params)[0]


def _solve(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster, params: PlanParams
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Limits [M, L], and the replicas of all cells as (row, layer, expert, rank) and tokens, unsorted in a cell."""
    num_layers = len(home_LE)
    by_node_LE = np.argsort(home_LE // cluster.gpus_per_node, axis=1, kind="stable")
    return _solve_cells(
        np.ascontiguousarray(load_MLE),
        np.ascontiguousarray(home_LE, dtype=np.int64),
        by_node_LE.reshape(num_layers, cluster.num_nodes, -1),
        cluster.gpus_per_node,
        cluster.redundant_slots,
        params.min_tokens_per_replica,
    )


@compiled
def _pick_expert(
    remaining_X: NDArray[np.int64],
    home_X: NDArray[np.int64],
    has_XG: NDArray[np.bool_],
    load_G: NDArray[np.int64],
    rank: int,
    limit: int,
    min_tokens: int,
    rule: int,
) -> int:
    """Choose the expert of an overloaded rank that fills `rank` best, or -1: the most tokens, ties by `rule`."""
    slack = limit - load_G[rank]
    best, best_tokens, best_tie = -1, 0, 0
    for expert in range(len(remaining_X)):
        donor_load = load_G[home_X[expert]]
        if donor_load <= limit or remaining_X[expert] < min_tokens or has_XG[expert, rank]:
            continue
        tokens = min(slack, remaining_X[expert])
        tie = donor_load if rule == _HEAVIEST_DONOR else -remaining_X[expert]
        if best < 0 or tokens > best_tokens or (tokens == best_tokens and tie > best_tie):
            best, best_tokens, best_tie = expert, tokens, tie
    return best


@compiled
def _fill_node(
    load_X: NDArray[np.int64],
    home_X: NDArray[np.int64],
    num_ranks: int,
    slots: int,
    min_tokens: int,
    limit: int,
    rule: int,
    replica_Y3: NDArray[np.int64],
) -> int:
    """Bring all ranks of a node down to `limit`; write replicas (expert, rank, tokens), return their number or -1."""
    remaining_X = load_X.copy()
    load_G = np.zeros(num_ranks, dtype=np.int64)
    free_G = np.full(num_ranks, slots)
    has_XG = np.zeros((len(load_X), num_ranks), dtype=np.bool_)
    for expert in range(len(load_X)):
        load_G[home_X[expert]] += load_X[expert]
        has_XG[expert, home_X[expert]] = True
    num_replicas = 0
    while load_G.max() > limit:
        rank = -1
        for candidate in range(num_ranks):
            open_ = free_G[candidate] > 0 and load_G[candidate] + min_tokens <= limit
            if open_ and (rank < 0 or load_G[candidate] < load_G[rank]):
                rank = candidate
        if rank < 0:
            return -1
        expert = _pick_expert(remaining_X, home_X, has_XG, load_G, rank, limit, min_tokens, rule)
        if expert < 0:
            free_G[rank] = 0
            continue
        tokens = min(limit - load_G[rank], remaining_X[expert])
        replica_Y3[num_replicas, 0] = expert
        replica_Y3[num_replicas, 1] = rank
        replica_Y3[num_replicas, 2] = tokens
        num_replicas += 1
        load_G[home_X[expert]] -= tokens
        load_G[rank] += tokens
        remaining_X[expert] -= tokens
        free_G[rank] -= 1
        has_XG[expert, rank] = True
    return num_replicas


@compiled
def _fill_by_any_rule(
    load_X: NDArray[np.int64],
    home_X: NDArray[np.int64],
    num_ranks: int,
    slots: int,
    min_tokens: int,
    limit: int,
    replica_Y3: NDArray[np.int64],
) -> int:
    for rule in range(_RULES):
        num_replicas = _fill_node(load_X, home_X, num_ranks, slots, min_tokens, limit, rule, replica_Y3)
        if num_replicas >= 0:
            return num_replicas
    return -1


@compiled
def _solve_cells(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int64],
    expert_LNX: NDArray[np.int64],
    num_ranks: int,
    slots: int,
    min_tokens: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    num_rows, num_layers, _ = load_MLE.shape
    num_nodes = expert_LNX.shape[1]
    limit_ML = np.zeros((num_rows, num_layers), dtype=np.int64)
    most = num_rows * num_layers * num_nodes * num_ranks * slots
    index_Q4 = np.empty((most, 4), dtype=np.int32)
    tokens_Q = np.empty(most, dtype=np.int64)
    replica_Y3 = np.empty((num_ranks * slots, 3), dtype=np.int64)
    reached_N = np.empty(num_nodes, dtype=np.int64)
    num_quotas = 0
    for row in range(num_rows):
        for layer in range(num_layers):
            load_E, home_E = load_MLE[row, layer], home_LE[layer] % num_ranks
            limit = 0
            for expert_X in expert_LNX[layer]:
                limit = max(limit, -(-load_E[expert_X].sum() // num_ranks))
            for node in range(num_nodes):
                expert_X = expert_LNX[layer, node]
                load_X, home_X = load_E[expert_X], home_E[expert_X]
                if _fill_by_any_rule(load_X, home_X, num_ranks, slots, min_tokens, limit, replica_Y3) < 0:
                    too_low, limit = limit, load_X.sum()
                    while limit - too_low > 1:
                        middle = (too_low + limit) // 2
                        if _fill_by_any_rule(load_X, home_X, num_ranks, slots, min_tokens, middle, replica_Y3) >= 0:
                            limit = middle
                        else:
                            too_low = middle
                reached_N[node] = limit
            limit_ML[row, layer] = limit
            for node in range(num_nodes):
                expert_X = expert_LNX[layer, node]
                load_X, home_X = load_E[expert_X], home_E[expert_X]
                num_replicas = _fill_by_any_rule(load_X, home_X, num_ranks, slots, min_tokens, limit, replica_Y3)
                if num_replicas < 0:  # greedy filling may miss a higher limit than one it reached
                    num_replicas = _fill_by_any_rule(
                        load_X, home_X, num_ranks, slots, min_tokens, reached_N[node], replica_Y3
                    )
                for replica in range(num_replicas):
                    index_Q4[num_quotas, 0] = row
                    index_Q4[num_quotas, 1] = layer
                    index_Q4[num_quotas, 2] = expert_X[replica_Y3[replica, 0]]
                    index_Q4[num_quotas, 3] = node * num_ranks + replica_Y3[replica, 1]
                    tokens_Q[num_quotas] = replica_Y3[replica, 2]
                    num_quotas += 1
    return limit_ML, index_Q4[:num_quotas], tokens_Q[:num_quotas]
