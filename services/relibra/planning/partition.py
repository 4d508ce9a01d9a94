"""Split experts into equally large groups so that the largest group of every row stays small.

Groups are nodes or ranks, whichever the caller balances. The objective is `sum_m max_g load[m, g]`, the slowest group
of every row, summed in tokens.

M rows, E experts, P groups.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled

NUM_PROPOSALS = 200_000
"""Swaps to try per layer. Ten times as many lower the objective by another 0.1 % to 0.2 % on real routing."""

_NUM_STARTS = 4
"""Times the threshold is raised again, from the best split so far, to half its height before."""


def spread(load_E: NDArray[np.int64], num_groups: int) -> NDArray[np.int32]:
    """Longest processing time first: each expert, heaviest first, joins the lightest group that has room."""
    room_P = np.full(num_groups, len(load_E) // num_groups)
    return fill(load_E, np.zeros(num_groups, dtype=np.int64), room_P)


def fill(load_X: NDArray[np.int64], group_load_P: NDArray[np.int64], room_P: NDArray[np.integer]) -> NDArray[np.int32]:
    """Add experts, heaviest first, to groups that have a load and some room already; equal loads go by index.

    Args:
        load_X: tokens of the experts to add; as many as there is room.
        group_load_P: tokens every group has before.
        room_P: experts every group can take.
    """
    group_X = np.empty(len(load_X), dtype=np.int32)
    group_load_P, room_P = group_load_P.copy(), room_P.copy()
    for expert in np.argsort(-load_X, kind="stable"):
        open_P = np.flatnonzero(room_P)
        group = open_P[np.argmin(group_load_P[open_P])]
        group_X[expert] = group
        group_load_P[group] += load_X[expert]
        room_P[group] -= 1
    return group_X


def align(group_E: NDArray[np.int32], previous_E: NDArray[np.int32], num_groups: int) -> NDArray[np.int32]:
    """Renumber groups so that as many experts as a greedy matching finds stay in the group they were in.

    Groups are alike, so this changes no load and saves moves.
    """
    pair_X, overlap_X = np.unique(group_E.astype(np.int64) * num_groups + previous_E, return_counts=True)
    name_P = np.full(num_groups, -1, dtype=np.int32)
    taken_P = np.zeros(num_groups, dtype=np.bool_)
    for pair in pair_X[np.argsort(-overlap_X, kind="stable")]:
        group, name = divmod(int(pair), num_groups)
        if name_P[group] < 0 and not taken_P[name]:
            name_P[group] = name
            taken_P[name] = True
    name_P[name_P < 0] = np.flatnonzero(~taken_P)
    return name_P[group_E]


def improve(
    load_ME: NDArray[np.int64],
    group_E: NDArray[np.int32],
    num_groups: int,
    seed: int,
    num_proposals: int,
) -> NDArray[np.int32]:
    """Swap pairs of experts between groups, by threshold accepting, and return the best split seen.

    Threshold accepting (Dueck and Scheuer 1990) is simulated annealing that accepts any step which worsens the
    objective by less than a falling threshold. It needs no exponential, so the search is exact in integers. A swap is
    worth trying between experts of similar load, so partners are drawn from a window in the order of total load.

    Args:
        load_ME: tokens, int64.
        group_E: the split to start from, of equally large groups.
        num_groups: P.
        seed: of the random proposals.
        num_proposals: swaps to try.

    Returns:
        The group of every expert, int32; never worse than `group_E`.
    """
    if num_groups == 1 or num_groups == len(group_E):
        return group_E  # a swap of whole groups changes nothing
    order_E = np.argsort(-load_ME.sum(axis=0), kind="stable")
    load_EM = np.ascontiguousarray(load_ME[:, order_E].T)
    best_E = group_E[order_E].astype(np.int64)
    for start in range(_NUM_STARTS):
        stream = (seed * _NUM_STARTS + start) % (1 << 63)
        best_E = _accept_swaps(load_EM, best_E, num_groups, stream, num_proposals // _NUM_STARTS, start)
    result_E = np.empty_like(group_E)
    result_E[order_E] = best_E
    return result_E


@compiled
def _next_random(state: NDArray[np.uint64]) -> np.uint64:
    """Advance splitmix64 (Steele, Lea and Flood 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))


@compiled
def _rank_largest(load_P: NDArray[np.int64], top_3: NDArray[np.int64]) -> None:
    """Write the three largest groups, so that the largest one besides any two is known without a scan."""
    top_3[:] = -1
    for group in range(len(load_P)):
        load = load_P[group]
        if top_3[0] < 0 or load > load_P[top_3[0]]:
            top_3[2], top_3[1], top_3[0] = top_3[1], top_3[0], group
        elif top_3[1] < 0 or load > load_P[top_3[1]]:
            top_3[2], top_3[1] = top_3[1], group
        elif top_3[2] < 0 or load > load_P[top_3[2]]:
            top_3[2] = group


@compiled
def _accept_swaps(
    load_EM: NDArray[np.int64],
    group_E: NDArray[np.int64],
    num_groups: int,
    seed: int,
    num_proposals: int,
    halvings: int,
) -> NDArray[np.int64]:
    """Search once; experts come heaviest first, and `group_E` is overwritten."""
    num_experts, num_rows = load_EM.shape
    load_MP = np.zeros((num_rows, num_groups), dtype=np.int64)
    for expert in range(num_experts):
        for row in range(num_rows):
            load_MP[row, group_E[expert]] += load_EM[expert, row]
    top_M3 = np.empty((num_rows, 3), dtype=np.int64)
    cost = 0
    # What the rows from m on cost at least: a proposal that cannot get below its limit any more is dropped halfway.
    floor_M = np.zeros(num_rows + 1, dtype=np.int64)
    for row in range(num_rows - 1, -1, -1):
        _rank_largest(load_MP[row], top_M3[row])
        cost += load_MP[row, top_M3[row, 0]]
        floor_M[row] = floor_M[row + 1] + load_MP[row].sum() // num_groups
    best_cost, best_E = cost, group_E.copy()
    state = np.array([seed], dtype=np.uint64)
    window = max(4, num_experts // 8)
    first_threshold = (2 * cost // (5 * num_experts)) >> halvings
    for proposal in range(num_proposals):
        bits = _next_random(state)
        one = np.int64((bits >> np.uint64(32)) * np.uint64(num_experts) >> np.uint64(32))
        other = one + 1 + np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(window) >> np.uint64(32))
        if other >= num_experts or group_E[one] == group_E[other]:
            continue
        a, b = group_E[one], group_E[other]
        left = num_proposals - proposal
        limit = cost + first_threshold * left // num_proposals * left // num_proposals
        new_cost = 0
        for row in range(num_rows):
            moved = load_EM[other, row] - load_EM[one, row]
            largest = max(load_MP[row, a] + moved, load_MP[row, b] - moved)
            for group in top_M3[row]:
                if group >= 0 and group != a and group != b:
                    largest = max(largest, load_MP[row, group])
                    break
            new_cost += largest
            if new_cost + floor_M[row + 1] > limit:
                new_cost = limit + 1
                break
        if new_cost > limit:
            continue
        cost = new_cost
        group_E[one], group_E[other] = b, a
        for row in range(num_rows):
            moved = load_EM[other, row] - load_EM[one, row]
            load_MP[row, a] += moved
            load_MP[row, b] -= moved
            _rank_largest(load_MP[row], top_M3[row])
        if cost < best_cost:
            best_cost = cost
            best_E[:] = group_E
    return best_E
