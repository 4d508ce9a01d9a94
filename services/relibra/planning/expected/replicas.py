"""Replicas for estimated loads: every slot is used, so that no rank depends on a single expert.

`replicate` balances known loads with as few replicas as possible. If the actual load of a hot expert differs from the
estimate, a rank that computes the whole expert is off by the whole error, and a rank that computes a part of it by that
part. `hedge_layer` therefore minimises the expected sum of squares of rank loads, where the load of every expert varies
by half of itself, independently of the others. It adds the replica that lowers the sum most, again and again. After
each one, the experts divide their tokens anew in turn, which is a problem of water filling.

All rows of a layer are expected to be alike, so they get the same replicas.

M rows, E experts, R EP ranks, G ranks of a node, X experts of a node, Y replicas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.job import Cluster
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.layer_replicas import LayerReplicas, worth_their_cell

_SCALE = 1 << 20
"""Tokens of a node in the units of the search. Squares and their sums then stay within int64."""
_WHOLE = 1 << 15
"""The load of an expert in the units of a replica's part of it."""
_NUM_SWEEPS = 8
"""How often all experts divide their tokens anew after a replica is added."""


def hedge_layer(
    load_ME: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster, price: ReplicaPrice
) -> LayerReplicas:
    """Choose the replicas of one layer, for estimated loads; the counterpart of `replicate_layer`."""
    total_E, size = load_ME.sum(axis=0), cluster.gpus_per_node
    expert, rank, fraction = [], [], []
    for node in range(cluster.num_nodes):
        expert_X = np.flatnonzero(home_E // size == node)
        tokens = max(int(total_E[expert_X].sum()), 1)
        load_X = total_E[expert_X] * _SCALE // tokens
        least = price.least * len(load_ME) * _SCALE // tokens
        held_XG = _divide_node(load_X, home_E[expert_X] - node * size, size, cluster.redundant_slots, max(1, least))
        place_Y, rank_Y = np.nonzero(held_XG)
        expert.append(expert_X[place_Y])
        rank.append(rank_Y + node * size)
        fraction.append(held_XG[place_Y, rank_Y] * _WHOLE // load_X[place_Y])
    expert_Y, rank_Y, fraction_Y = np.concatenate(expert), np.concatenate(rank), np.concatenate(fraction)
    tokens_MY = load_ME[:, expert_Y] * fraction_Y // _WHOLE
    is_kept_MY = tokens_MY >= price.least
    row_Y, kept_Y = np.nonzero(is_kept_MY)
    tokens_MY[~is_kept_MY] = 0
    load_RM = np.zeros((cluster.num_ranks, len(load_ME)), dtype=np.int64)
    np.add.at(load_RM, home_E, load_ME.T)
    np.add.at(load_RM, home_E[expert_Y], -tokens_MY.T)
    np.add.at(load_RM, rank_Y, tokens_MY.T)
    limit_M = load_RM.max(axis=0)
    found = LayerReplicas(
        limit_M=limit_M,
        cost_M=limit_M,
        end_M=np.searchsorted(row_Y, np.arange(len(load_ME)), side="right"),
        index_Y2=np.stack([expert_Y[kept_Y], rank_Y[kept_Y]], axis=1).astype(np.int32),
        tokens_Y=tokens_MY[row_Y, kept_Y],
    )
    return worth_their_cell(found, load_ME, home_E, cluster, price.of_cell)


@compiled
def _water_fill(load: int, other_G: NDArray[np.int64], holds_G: NDArray[np.bool_], part_G: NDArray[np.int64]) -> None:
    """Divide the load of one expert over the ranks that hold it, given the other loads of these ranks.

    The sum of (other + part)**2 + part**2 / 4 is smallest where other + 5/4 part is equal on all ranks with a part.
    """
    num_held, held = 0, 0
    for rank in range(len(other_G)):
        part_G[rank] = 1 if holds_G[rank] else 0
        num_held += part_G[rank]
        held += other_G[rank] * part_G[rank]
    is_settled = False
    while not is_settled:
        is_settled, level = True, 5 * load + 4 * held
        count = num_held
        for rank in range(len(other_G)):
            if part_G[rank] > 0 and level <= 4 * count * other_G[rank]:
                part_G[rank] = 0
                num_held -= 1
                held -= other_G[rank]
                is_settled = False
    for rank in range(len(other_G)):
        if part_G[rank] > 0:
            part_G[rank] = (5 * load + 4 * held - 4 * num_held * other_G[rank]) // (5 * num_held)


@compiled
def _risk(other_G: NDArray[np.int64], part_G: NDArray[np.int64]) -> int:
    """Return four times what the parts add to the expected sum of squares."""
    risk = 0
    for rank in range(len(other_G)):
        risk += part_G[rank] * (8 * other_G[rank] + 5 * part_G[rank])
    return risk


@compiled
def _divide_node(
    load_X: NDArray[np.int64], home_X: NDArray[np.int32], num_ranks: int, slots: int, least: int
) -> NDArray[np.int64]:
    """Return the load that every rank takes of every expert whose home is another rank, `[X, G]`."""
    num_experts = len(load_X)
    part_XG = np.zeros((num_experts, num_ranks), dtype=np.int64)
    holds_XG = np.zeros((num_experts, num_ranks), dtype=np.bool_)
    load_G = np.zeros(num_ranks, dtype=np.int64)
    free_G = np.full(num_ranks, slots)
    trial_G = np.empty(num_ranks, dtype=np.int64)
    for expert in range(num_experts):
        holds_XG[expert, home_X[expert]] = True
        part_XG[expert, home_X[expert]] = load_X[expert]
        load_G[home_X[expert]] += load_X[expert]
    for _ in range(num_ranks * slots):
        best_gain, best, best_rank = 0, -1, -1
        for expert in range(num_experts):
            other_G = load_G - part_XG[expert]
            risk = _risk(other_G, part_XG[expert])
            for rank in range(num_ranks):
                if holds_XG[expert, rank] or free_G[rank] == 0:
                    continue
                holds_XG[expert, rank] = True
                _water_fill(load_X[expert], other_G, holds_XG[expert], trial_G)
                holds_XG[expert, rank] = False
                gain = risk - _risk(other_G, trial_G)
                if trial_G[rank] >= least and gain > best_gain:
                    best_gain, best, best_rank = gain, expert, rank
        if best < 0:
            break
        holds_XG[best, best_rank] = True
        free_G[best_rank] -= 1
        for _ in range(_NUM_SWEEPS):
            for expert in range(num_experts):
                load_G -= part_XG[expert]
                _water_fill(load_X[expert], load_G, holds_XG[expert], part_XG[expert])
                load_G += part_XG[expert]
    for expert in range(num_experts):
        part_XG[expert, home_X[expert]] = 0
    return part_XG
