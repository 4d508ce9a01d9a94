"""Improve a split of experts into equally large groups by swapping pairs of them.

The objective is `sum_m max_g load[m, g]`: the tokens of the largest group of every row, summed over rows. Where groups
are not alike, the price of every expert in its group is added.

M rows, E experts, P groups, X experts of a group or, in `improve`, all experts by falling load.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled, next_random
from relibra.planning.placement.partition import largest_groups

NUM_STARTS = 4
"""Searches in a row. Each starts from the best split so far, with half the threshold of the search before."""

_STEP_WORK = 300_000_000
"""Work of a whole step: rows looked at, plus `_PROPOSAL_WORK` for every proposed swap."""

_PROPOSAL_WORK = 16
"""What a proposal costs besides its rows, in rows."""

_PROPOSALS_PER_EXPERT = 300
"""Proposals that a layer gets at least, however large the step is."""

_CLOSE_ENOUGH = 13
"""The search stops within 2**-13 = 0.01 % of equal groups."""

_PROPOSALS_PER_PAIR = 32
"""Swaps tried between two groups before the next two are drawn; fewer if their members make fewer pairs."""


def num_proposals(num_rows: int, num_layers: int, num_experts: int) -> int:
    """Return the swaps to try in every layer.

    The work of a step is about the same for steps of all sizes, within limits set by the number of experts. Ten times
    as many swaps lower the objective by another 0.1 % to 0.2 % on real routing.
    """
    affordable = _STEP_WORK // (num_layers * (_PROPOSAL_WORK + num_rows))
    return min(max(affordable, _PROPOSALS_PER_EXPERT * num_experts), 1000 * num_experts**2)


def improve(
    load_ME: NDArray[np.integer],
    group_E: NDArray[np.int32],
    num_groups: int,
    seed: int,
    num_proposals: int,
    first_start: int = 0,
    price_PE: NDArray[np.int64] | None = None,
) -> NDArray[np.int32]:
    """Swap pairs of experts between groups, by threshold accepting, and return the best split seen.

    Threshold accepting (Dueck and Scheuer 1990) is simulated annealing that accepts any step which worsens the
    objective by less than a falling threshold. It needs no exponential, so the search is exact in integers.

    Several swaps are tried between the same two groups in turn. The largest of all other groups is then known for every
    row, and the objective after a swap is one pass over contiguous 32-bit loads, which the compiler turns into vector
    instructions. The first group of a pair is the largest one of a random row, because no other swap can help that row.
    The two experts of a swap are close by total load, because such swaps are the ones worth trying.

    Args:
        load_ME: tokens of every expert.
        group_E: the split to start from; its groups are equally large.
        num_groups: P.
        seed: seed of the random proposals.
        num_proposals: swaps to try.
        first_start: which of the `NUM_STARTS` searches comes first. A later one stays closer to the split it starts
            from.
        price_PE: what it costs to have an expert in a group, in tokens; nothing by default.

    Returns:
        The group of every expert, int32; never worse than `group_E`.
    """
    num_experts = len(group_E)
    total_E = load_ME.sum(axis=0, dtype=np.int64)
    if num_groups in (1, num_experts) or not total_E.any():
        return group_E  # swaps are impossible, exchange whole groups, or move no load
    order_E = np.argsort(-total_E, kind="stable")
    # The objective must fit 32 bits. What the shift loses is less than the search can tell apart.
    shift = max(0, int(total_E.sum()).bit_length() - 31)
    load_EM = np.ascontiguousarray((load_ME[:, order_E] >> shift).T, dtype=np.int32)
    group_X = group_E[order_E].astype(np.int64)
    if price_PE is None:
        price_PE = np.zeros((num_groups, num_experts), dtype=np.int64)
    shifted_EP = np.ascontiguousarray((price_PE[:, order_E] >> shift).T)
    for start in range(first_start, NUM_STARTS):
        stream = (seed * NUM_STARTS + start) % (1 << 63)
        group_X = _accept_swaps(load_EM, shifted_EP, group_X, stream, num_proposals // NUM_STARTS, start)
    result_E = np.empty_like(group_E)
    result_E[order_E] = group_X
    if shift and objective(load_ME, result_E, num_groups, price_PE) > objective(load_ME, group_E, num_groups, price_PE):
        return group_E
    return result_E


def objective(
    load_ME: NDArray[np.integer], group_E: NDArray[np.int32], num_groups: int, price_PE: NDArray[np.int64] | None = None
) -> int:
    """Return the objective of the search for a split, in tokens."""
    price = 0 if price_PE is None else int(price_PE[group_E, np.arange(len(group_E))].sum())
    return largest_groups(load_ME, group_E, num_groups) + price


@compiled
def _largest_after_swap(
    rest_M: NDArray[np.int32],
    load_a_M: NDArray[np.int32],
    load_b_M: NDArray[np.int32],
    one_M: NDArray[np.int32],
    other_M: NDArray[np.int32],
) -> int:
    """Return the sum over rows of the largest group, after expert `one` of a and expert `other` of b change places.

    `rest_M` has the largest of all other groups.
    """
    largest = np.int32(0)
    for row in range(len(rest_M)):
        moved = other_M[row] - one_M[row]
        largest += max(rest_M[row], max(load_a_M[row] + moved, load_b_M[row] - moved))
    return int(largest)


@compiled
def _choose_pair(load_PM: NDArray[np.int32], bits: np.uint64, rest_M: NDArray[np.int32]) -> tuple[int, int]:
    """Draw the largest group of a random row and any other group; write the largest of the rest to `rest_M`."""
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
def _place(member_X: NDArray[np.int64], expert: int) -> int:
    """Return how many members come before `expert`."""
    place = 0
    for member in member_X:  # no early exit: the whole loop is one vector instruction or a few
        place += int(member < expert)
    return place


@compiled
def _exchange(member_X: NDArray[np.int64], at: int, expert: int) -> None:
    """Replace the member at `at` by `expert`, and keep members in order."""
    while at > 0 and member_X[at - 1] > expert:
        member_X[at] = member_X[at - 1]
        at -= 1
    while at + 1 < len(member_X) and member_X[at + 1] < expert:
        member_X[at] = member_X[at + 1]
        at += 1
    member_X[at] = expert


@compiled
def _accept_swaps(
    load_EM: NDArray[np.int32],
    price_EP: NDArray[np.int64],
    group_E: NDArray[np.int64],
    seed: int,
    num_proposals: int,
    halvings: int,
) -> NDArray[np.int64]:
    """Run one search; experts and the members of every group are sorted by falling load."""
    num_experts, num_rows = load_EM.shape
    num_groups = price_EP.shape[1]
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
    largest, ideal, price = 0, 0, 0
    for row in range(num_rows):
        largest += int(load_PM[:, row].max())
        ideal += int(load_PM[:, row].sum()) // num_groups
    for expert in range(num_experts):
        price += price_EP[expert, group_E[expert]]
        ideal += price_EP[expert].min()
    best_cost, best_PX = largest + price, member_PX.copy()
    state = np.array([seed], dtype=np.uint64)
    rest_M = np.empty(num_rows, dtype=np.int32)
    window = max(2, size // 16)
    first_threshold = (largest // max(2 * num_experts, num_experts**2 // 16)) >> halvings
    num_tries = min(_PROPOSALS_PER_PAIR, size**2)
    num_pairs = max(1, num_proposals // num_tries)
    for left in range(num_pairs, 0, -1):
        if best_cost <= ideal + (ideal >> _CLOSE_ENOUGH):
            break
        threshold = first_threshold * left // num_pairs * left // num_pairs
        a, b = _choose_pair(load_PM, next_random(state), rest_M)
        load_a_M, load_b_M, member_a_X, member_b_X = load_PM[a], load_PM[b], member_PX[a], member_PX[b]
        for _ in range(num_tries):
            bits = next_random(state)
            i = np.int64((bits >> np.uint64(32)) * np.uint64(size) >> np.uint64(32))
            step = np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(2 * window) >> np.uint64(32))
            one = member_a_X[i]
            j = _place(member_b_X, one) + int(step) - window
            if j < 0 or j >= size:
                continue
            other = member_b_X[j]
            change = price_EP[one, b] - price_EP[one, a] + price_EP[other, a] - price_EP[other, b]
            limit = largest + threshold - change
            moved_total = total_E[other] - total_E[one]
            # The total of a group is at most the sum over rows of the largest group.
            if total_P[a] + moved_total > limit or total_P[b] - moved_total > limit:
                continue
            proposed = _largest_after_swap(rest_M, load_a_M, load_b_M, load_EM[one], load_EM[other])
            if proposed > limit:
                continue
            largest = proposed
            price += change
            for row in range(num_rows):
                moved = load_EM[other, row] - load_EM[one, row]
                load_a_M[row] += moved
                load_b_M[row] -= moved
            total_P[a] += moved_total
            total_P[b] -= moved_total
            _exchange(member_a_X, int(i), other)
            _exchange(member_b_X, j, one)
            if largest + price < best_cost:
                best_cost = largest + price
                best_PX[:] = member_PX
    best_E = np.empty(num_experts, dtype=np.int64)
    for group in range(num_groups):
        best_E[best_PX[group]] = group
    return best_E
