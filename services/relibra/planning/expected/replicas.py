"""Replicas for loads that are not known yet: copies with which tokens of earlier micro-batches could be split best.

Which token goes to which copy is decided when the router has run (`planning.split`), so a copy that is not needed costs
no balance. Copies are therefore chosen for many loads at once: those of earlier micro-batches, and the same again with
the load of every expert varied at random, because the next micro-batch will not be like any of them. All cells of a
layer get the same copies.

The search adds one copy after the other, always the one that moves most tokens from fuller to emptier ranks, weighted
by how much fuller they are; it lowers the sum of squares of all loads. After each copy, tokens are split anew. Where
nothing that was seen would gain from another copy, experts with the most tokens for each copy get one, as long as slots
are left.

N micro-batches seen, E experts, R EP ranks, G ranks of a node, X experts of a node, S samples, Y replicas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once, next_random
from relibra.planning.job import Cluster
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.layer_replicas import LayerReplicas
from relibra.planning.split import split_step

_SCALE = 1 << 20
"""Mean tokens of a node in the units of the search. Squares and their sums then stay within int64."""
_MOST_SEEN = 16
"""Micro-batches that the search looks at; more than these change little, and take their time."""
_LEAST_SAMPLES = 16
_NUM_POURS = 1


def foresee_layer(
    load_NE: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster, price: ReplicaPrice
) -> LayerReplicas:
    """Choose the replicas of one layer from micro-batches that were seen; the same in all of them.

    A replica has at least `price.least` tokens on average. There are none if they do not save what they cost.
    """
    size, index = cluster.gpus_per_node, [np.zeros((0, 2), dtype=np.int32)]
    chosen_N = np.linspace(0, len(load_NE) - 1, min(len(load_NE), _MOST_SEEN)).astype(np.int64)
    for node in range(cluster.num_nodes if cluster.redundant_slots else 0):
        expert_X = np.flatnonzero(home_E // size == node)
        seen_NX = load_NE[np.ix_(chosen_N, expert_X)]
        mean = max(int(seen_NX.sum()) // len(seen_NX), 1)
        home_X = home_E[expert_X] - np.int32(node * size)
        holds_XG = _choose(seen_NX * _SCALE // mean, home_X, size, cluster.redundant_slots)
        place_Y, rank_Y = np.nonzero(holds_XG)
        index.append(np.stack([expert_X[place_Y], rank_Y + node * size], axis=1).astype(np.int32))
    index_Y2 = np.concatenate(index)
    index_Y2 = index_Y2[np.lexsort(index_Y2.T[::-1])]
    replicas = _in_all(index_Y2, load_NE, home_E, cluster)
    # Without the small ones the others have other tokens.
    while not (is_large_Y := replicas.tokens_Y.reshape(len(load_NE), -1).mean(axis=0) >= price.least).all():
        index_Y2 = index_Y2[is_large_Y]
        replicas = _in_all(index_Y2, load_NE, home_E, cluster)
    busiest = _busiest(replicas.index_Y2[: int(replicas.end_M[0])], home_E, cluster.num_ranks)
    cost = busiest * price.of_busiest + (price.of_cell if busiest else 0)
    at_home = _in_all(index_Y2[:0], load_NE, home_E, cluster)
    if int((at_home.limit_M - replicas.limit_M).sum()) <= cost * len(load_NE):
        return at_home
    return replicas


def _in_all(
    index_Y2: NDArray[np.int32], load_NE: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster
) -> LayerReplicas:
    """Return these replicas in every micro-batch, with the tokens that they then get."""
    num_rows, num = len(load_NE), len(index_Y2)
    index_Y4 = np.zeros((num_rows * num, 4), dtype=np.int32)
    index_Y4[:, 0] = np.repeat(np.arange(num_rows), num)
    index_Y4[:, 2:] = np.tile(index_Y2, (num_rows, 1))
    load_NLE = np.ascontiguousarray(load_NE[:, None])
    tokens_Y, _ = split_step(
        load_NLE, np.zeros_like(load_NLE), home_E[None], index_Y4, cluster.gpus_per_node, cluster.num_ranks
    )
    loads_NR = np.zeros((num_rows, cluster.num_ranks), dtype=np.int64)
    np.add.at(loads_NR.T, home_E, load_NE.T)
    np.add.at(loads_NR, (index_Y4[:, 0], index_Y4[:, 3]), tokens_Y)
    np.subtract.at(loads_NR, (index_Y4[:, 0], home_E[index_Y4[:, 2]]), tokens_Y)
    limit_N = loads_NR.max(axis=1)
    return LayerReplicas(
        limit_M=limit_N,
        cost_M=limit_N,
        end_M=np.arange(1, num_rows + 1) * num,
        index_Y2=index_Y4[:, 2:],
        tokens_Y=tokens_Y,
    )


def _busiest(index_Y2: NDArray[np.int32], home_E: NDArray[np.int32], num_ranks: int) -> int:
    """Return the most replicas that leave or enter one rank."""
    leaving_R = np.bincount(home_E[index_Y2[:, 0]], minlength=num_ranks)
    return int(max(leaving_R.max(), np.bincount(index_Y2[:, 1], minlength=num_ranks).max()))


@compile_once
def _vary(seen_NX: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the micro-batches, and each of them again, at least twice, with loads times random factors up to 2.

    With one variation of each, some plans depended on its luck. There are at least `_LEAST_SAMPLES`: where little was
    seen, nobody knows how micro-batches differ.
    """
    num_seen, num_experts = seen_NX.shape
    num_samples = max(3 * num_seen, _LEAST_SAMPLES)
    load_SX = np.empty((num_samples, num_experts), dtype=np.int64)
    state = np.zeros(1, dtype=np.uint64)
    for sample in range(num_samples):
        for expert in range(num_experts):
            factor = np.int64(1 << 15)
            if sample >= num_seen:
                factor = np.int64(next_random(state) >> np.uint64(49)) + np.int64(next_random(state) >> np.uint64(49))
            load_SX[sample, expert] = seen_NX[sample % num_seen, expert] * factor >> 15
    return load_SX


@compile_once
def _gain(part_G: NDArray[np.int64], holds_G: NDArray[np.bool_], load_G: NDArray[np.int64], rank: int) -> int:
    """Return by how much the sum of squares falls, halved, if the fullest holder shares its part with a rank."""
    best = 0
    for holder in range(len(load_G)):
        if holds_G[holder] and part_G[holder] > 0 and load_G[holder] > load_G[rank]:
            difference = load_G[holder] - load_G[rank]
            moved = min(part_G[holder], difference // 2)
            best = max(best, moved * (difference - moved))
    return best


@compile_once
def _level(load: int, other_G: NDArray[np.int64], holds_G: NDArray[np.bool_], part_G: NDArray[np.int64]) -> None:
    """Divide the load of an expert over its holders so that they end level, as far as that is possible."""
    lowest, highest = np.int64(1) << 62, np.int64(0)
    for rank in range(len(other_G)):
        if holds_G[rank]:
            lowest, highest = min(lowest, other_G[rank]), max(highest, other_G[rank])
    highest += load
    while lowest < highest:
        level = (lowest + highest) // 2
        taken = np.int64(0)
        for rank in range(len(other_G)):
            taken += max(0, level - other_G[rank]) if holds_G[rank] else 0
        if taken < load:
            lowest = level + 1
        else:
            highest = level
    surplus = -load
    for rank in range(len(other_G)):
        part_G[rank] = max(0, lowest - other_G[rank]) if holds_G[rank] else 0
        surplus += part_G[rank]
    for rank in range(len(other_G) - 1, -1, -1):
        if surplus > 0 and part_G[rank] > 0:
            part_G[rank] -= 1
            surplus -= 1


@compile_once
def _choose(seen_NX: NDArray[np.int64], home_X: NDArray[np.int32], num_ranks: int, slots: int) -> NDArray[np.bool_]:
    """Return which ranks of a node hold replicas of which experts, `[X, G]`."""
    load_SX = _vary(seen_NX)
    num_samples, num_experts = load_SX.shape
    part_SXG = np.zeros((num_samples, num_experts, num_ranks), dtype=np.int64)
    load_SG = np.zeros((num_samples, num_ranks), dtype=np.int64)
    holds_XG = np.zeros((num_experts, num_ranks), dtype=np.bool_)
    num_held_X = np.ones(num_experts, dtype=np.int64)
    total_X = np.zeros(num_experts, dtype=np.int64)
    free_G = np.full(num_ranks, slots)
    for expert in range(num_experts):
        holds_XG[expert, home_X[expert]] = True
        for sample in range(num_samples):
            part_SXG[sample, expert, home_X[expert]] = load_SX[sample, expert]
            load_SG[sample, home_X[expert]] += load_SX[sample, expert]
            total_X[expert] += load_SX[sample, expert]
    for _ in range(num_ranks * slots):
        best_gain, best, best_rank = 0, -1, -1
        for expert in range(num_experts):
            for rank in range(num_ranks):
                if holds_XG[expert, rank] or free_G[rank] == 0:
                    continue
                gain = 0
                for sample in range(num_samples):
                    gain += _gain(part_SXG[sample, expert], holds_XG[expert], load_SG[sample], rank)
                if gain > best_gain:
                    best_gain, best, best_rank = gain, expert, rank
        if best < 0:
            most = 0
            for expert in range(num_experts):
                for rank in range(num_ranks):
                    is_possible = not holds_XG[expert, rank] and free_G[rank] > 0
                    if is_possible and total_X[expert] // num_held_X[expert] > most:
                        most, best, best_rank = total_X[expert] // num_held_X[expert], expert, rank
        if best < 0:
            break
        holds_XG[best, best_rank] = True
        free_G[best_rank] -= 1
        num_held_X[best] += 1
        for sample in range(num_samples):
            for _ in range(_NUM_POURS):
                for expert in range(num_experts):
                    if num_held_X[expert] == 1:
                        continue
                    for rank in range(num_ranks):
                        load_SG[sample, rank] -= part_SXG[sample, expert, rank]
                    _level(load_SX[sample, expert], load_SG[sample], holds_XG[expert], part_SXG[sample, expert])
                    for rank in range(num_ranks):
                        load_SG[sample, rank] += part_SXG[sample, expert, rank]
    for expert in range(num_experts):
        holds_XG[expert, home_X[expert]] = False
    return holds_XG
