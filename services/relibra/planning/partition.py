"""Split experts into equally large groups so that the largest group of every row stays small.

Groups are nodes or ranks, whichever the caller balances. The objective is `sum_m max_g load[m, g]`, the slowest group
of every row, summed in tokens.

M rows, E experts, P groups.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled

NUM_STARTS = 4
"""Times the threshold is raised again, from the best split so far, to half its height before."""

_STEP_WORK = 600_000_000
"""Rows to look at in a whole step, counting `_PROPOSAL_WORK` for what a proposal costs however few rows there are."""

_PROPOSAL_WORK = 16

_PROPOSALS_PER_EXPERT = 600

_CLOSE_ENOUGH = 13
"""A split within 2**-13 = 0.01 % of groups that are all alike needs no further search."""

_PROPOSALS_PER_PAIR = 32
"""Swaps tried between two groups before the next two are drawn."""


def num_proposals(num_rows: int, num_layers: int, num_experts: int) -> int:
    """Swaps to try in every layer: as much work for a small step as for a large one, up to what its experts need.

    Ten times as many lower the objective by another 0.1 % to 0.2 % on real routing.
    """
    affordable = _STEP_WORK // (num_layers * (_PROPOSAL_WORK + num_rows))
    return min(max(affordable, _PROPOSALS_PER_EXPERT * num_experts), 1000 * num_experts**2)


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
    order_X = np.argsort(-load_X, kind="stable")
    return _fill_groups(load_X, order_X, group_load_P.astype(np.int64), room_P.astype(np.int64))


def align(group_E: NDArray[np.int32], previous_E: NDArray[np.int32], num_groups: int) -> NDArray[np.int32]:
    """Renumber groups so that as many experts as a greedy matching finds stay in the group they were in.

    Groups are alike, so this changes no load and saves moves.
    """
    overlap_PP = np.bincount(group_E.astype(np.int64) * num_groups + previous_E, minlength=num_groups**2)
    return _match_groups(overlap_PP, np.argsort(-overlap_PP, kind="stable"), num_groups)[group_E]


def improve(
    load_ME: NDArray[np.integer],
    group_E: NDArray[np.int32],
    num_groups: int,
    seed: int,
    num_proposals: int,
) -> NDArray[np.int32]:
    """Swap pairs of experts between groups, by threshold accepting, and return the best split seen.

    Threshold accepting (Dueck and Scheuer 1990) is simulated annealing that accepts any step which worsens the
    objective by less than a falling threshold. It needs no exponential, so the search is exact in integers.

    Several swaps are tried between the same two groups in turn: the largest of all other groups is then known for every
    row, and the objective after a swap is one pass over contiguous 32-bit loads, which the compiler turns into vector
    instructions. The first group of a pair is the largest one of a random row, as no other swap can help that row;
    partners have about the same place in their groups by total load, as those swaps are the ones worth trying.

    Args:
        load_ME: tokens.
        group_E: the split to start from, of equally large groups.
        num_groups: P.
        seed: of the random proposals.
        num_proposals: swaps to try.

    Returns:
        The group of every expert, int32; never worse than `group_E`.
    """
    num_experts = len(group_E)
    total_E = load_ME.sum(axis=0, dtype=np.int64)
    if num_groups in (1, num_experts) or not total_E.any():
        return group_E  # a swap of whole groups changes nothing
    order_E = np.argsort(-total_E, kind="stable")
    # The objective must fit 32 bits; what a shift loses is below what a search can tell apart.
    shift = max(0, int(total_E.sum()).bit_length() - 31)
    load_EM = np.ascontiguousarray((load_ME[:, order_E] >> shift).T, dtype=np.int32)
    group_X = group_E[order_E].astype(np.int64)
    for start in range(NUM_STARTS):
        stream = (seed * NUM_STARTS + start) % (1 << 63)
        group_X = _accept_swaps(load_EM, group_X, num_groups, stream, num_proposals // NUM_STARTS, start)
    result_E = np.empty_like(group_E)
    result_E[order_E] = group_X
    if shift and largest_groups(load_ME, result_E, num_groups) > largest_groups(load_ME, group_E, num_groups):
        return group_E
    return result_E


def largest_groups(load_ME: NDArray[np.integer], group_E: NDArray[np.int32], num_groups: int) -> int:
    """Return the objective of a split: tokens of the largest group of every row, summed over rows."""
    by_group_E = np.argsort(group_E, kind="stable")
    load_MP = load_ME[:, by_group_E].reshape(len(load_ME), num_groups, -1).sum(axis=2, dtype=np.int64)
    return int(load_MP.max(axis=1).sum())


@compiled
def _fill_groups(
    load_X: NDArray[np.int64],
    order_X: NDArray[np.int64],
    group_load_P: NDArray[np.int64],
    room_P: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Fill the groups in place, with experts in the order given."""
    group_X = np.empty(len(load_X), dtype=np.int32)
    for expert in order_X:
        lightest = -1
        for group in range(len(room_P)):
            if room_P[group] > 0 and (lightest < 0 or group_load_P[group] < group_load_P[lightest]):
                lightest = group
        group_X[expert] = lightest
        group_load_P[lightest] += load_X[expert]
        room_P[lightest] -= 1
    return group_X


@compiled
def _match_groups(overlap_PP: NDArray[np.int64], order_PP: NDArray[np.int64], num_groups: int) -> NDArray[np.int32]:
    """Name every group after one it overlaps with, largest overlap first, and the rest in order."""
    name_P = np.full(num_groups, -1, dtype=np.int32)
    taken_P = np.zeros(num_groups, dtype=np.bool_)
    for pair in order_PP:
        if overlap_PP[pair] == 0:
            break
        group, name = pair // num_groups, pair % num_groups
        if name_P[group] < 0 and not taken_P[name]:
            name_P[group] = name
            taken_P[name] = True
    free = 0
    for group in range(num_groups):
        if name_P[group] < 0:
            while taken_P[free]:
                free += 1
            name_P[group] = free
            taken_P[free] = True
    return name_P


@compiled
def _next_random(state: NDArray[np.uint64]) -> np.uint64:
    """Advance splitmix64 (Steele, Lea and Flood 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))


@compiled
def _cost_of_swap(
    rest_M: NDArray[np.int32],
    load_a_M: NDArray[np.int32],
    load_b_M: NDArray[np.int32],
    one_M: NDArray[np.int32],
    other_M: NDArray[np.int32],
) -> int:
    """The objective after `one` of group a and `other` of group b change places; `rest` is the largest other group."""
    cost = np.int32(0)
    for row in range(len(rest_M)):
        moved = other_M[row] - one_M[row]
        cost += max(rest_M[row], max(load_a_M[row] + moved, load_b_M[row] - moved))
    return int(cost)


@compiled
def _choose_pair(load_PM: NDArray[np.int32], bits: np.uint64, rest_M: NDArray[np.int32]) -> tuple[int, int]:
    """Draw the largest group of a random row, and any other; write the largest of the rest of every row."""
    num_groups, num_rows = load_PM.shape
    drawn = np.int64((bits >> np.uint64(32)) * np.uint64(num_rows) >> np.uint64(32))
    a = int(np.argmax(load_PM[:, drawn]))
    b = int(np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(num_groups - 1) >> np.uint64(32)))
    if b >= a:
        b += 1
    rest_M[:] = 0
    for group in range(num_groups):
        if group != a and group != b:
            load_M = load_PM[group]
            for row in range(num_rows):
                rest_M[row] = max(rest_M[row], load_M[row])
    return a, b


@compiled
def _accept_swaps(
    load_EM: NDArray[np.int32],
    group_E: NDArray[np.int64],
    num_groups: int,
    seed: int,
    num_proposals: int,
    halvings: int,
) -> NDArray[np.int64]:
    """Search once; experts come heaviest first."""
    num_experts, num_rows = load_EM.shape
    size = num_experts // num_groups
    load_PM = np.zeros((num_groups, num_rows), dtype=np.int32)
    total_E = np.zeros(num_experts, dtype=np.int64)
    total_P = np.zeros(num_groups, dtype=np.int64)
    member_PX = np.empty((num_groups, size), dtype=np.int64)
    filled_P = np.zeros(num_groups, dtype=np.int64)
    for expert in range(num_experts):
        group = group_E[expert]
        member_PX[group, filled_P[group]] = expert
        filled_P[group] += 1
        for row in range(num_rows):
            load_PM[group, row] += load_EM[expert, row]
            total_E[expert] += load_EM[expert, row]
        total_P[group] += total_E[expert]
    cost, ideal = 0, 0
    for row in range(num_rows):
        cost += int(load_PM[:, row].max())
        ideal += int(load_PM[:, row].sum()) // num_groups
    best_cost, best_PX = cost, member_PX.copy()
    state = np.array([seed], dtype=np.uint64)
    rest_M = np.empty(num_rows, dtype=np.int32)
    window = max(4, size // 8)
    first_threshold = (cost // max(2 * num_experts, num_experts**2 // 16)) >> halvings
    num_pairs = max(1, num_proposals // _PROPOSALS_PER_PAIR)
    for left in range(num_pairs, 0, -1):
        if best_cost <= ideal + (ideal >> _CLOSE_ENOUGH):
            break
        threshold = first_threshold * left // num_pairs * left // num_pairs
        a, b = _choose_pair(load_PM, _next_random(state), rest_M)
        for _ in range(_PROPOSALS_PER_PAIR):
            bits = _next_random(state)
            i = np.int64((bits >> np.uint64(32)) * np.uint64(size) >> np.uint64(32))
            j = i - window + np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(2 * window + 1) >> np.uint64(32))
            if j < 0 or j >= size:
                continue
            one, other = member_PX[a, i], member_PX[b, j]
            limit = cost + threshold
            moved_total = total_E[other] - total_E[one]
            # No group's total can exceed the sum over rows of the largest group.
            if total_P[a] + moved_total > limit or total_P[b] - moved_total > limit:
                continue
            new_cost = _cost_of_swap(rest_M, load_PM[a], load_PM[b], load_EM[one], load_EM[other])
            if new_cost > limit:
                continue
            cost = new_cost
            for row in range(num_rows):
                moved = load_EM[other, row] - load_EM[one, row]
                load_PM[a, row] += moved
                load_PM[b, row] -= moved
            total_P[a] += moved_total
            total_P[b] -= moved_total
            member_PX[a, i], member_PX[b, j] = other, one
            if cost < best_cost:
                best_cost = cost
                best_PX[:] = member_PX
    best_E = np.empty(num_experts, dtype=np.int64)
    for group in range(num_groups):
        best_E[best_PX[group]] = group
    return best_E
