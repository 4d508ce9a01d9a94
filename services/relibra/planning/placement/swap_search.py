"""Improve a split of experts into equally large groups by swapping pairs of them.

`objective` says what the search minimises.

M rows, E experts, N nodes, P groups, X experts of a group or, in `improve`, all experts by falling load.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once, next_random
from relibra.planning.placement.objective import Moves, objective
from relibra.planning.traffic import UNIT_BITS, GroupTraffic

NUM_STARTS = 4
"""Searches in a row. Each starts from the best split so far, with half the threshold of the search before."""

_STEP_WORK = 300_000_000
"""Work of a whole step: rows looked at, plus `_PROPOSAL_WORK` for every proposed swap."""

_PROPOSAL_WORK = 16
"""What a proposal costs besides its rows, in rows."""

_TRAFFIC_WORK = 3
"""How many times as much work a row is where dispatch has a price."""

_PROPOSALS_PER_EXPERT = 300
"""Proposals that a layer gets at least, however large the step is; fewer where a row is more work."""

_CLOSE_ENOUGH = 13
"""The search stops within 2**-13 = 0.01 % of equal groups."""

_PROPOSALS_PER_PAIR = 32
"""Swaps tried between two groups before the next two are drawn; fewer if their members make fewer pairs."""


def num_proposals(num_rows: int, num_layers: int, num_experts: int, has_traffic: bool = False) -> int:
    """Return the swaps to try in every layer.

    The work of a step is about the same for steps of all sizes, within limits set by the number of experts. Ten times
    as many swaps lower the objective by another 0.1 % to 0.2 % on real routing.
    """
    row_work = _TRAFFIC_WORK if has_traffic else 1
    affordable = _STEP_WORK // (num_layers * (_PROPOSAL_WORK + num_rows * row_work))
    return min(max(affordable, _PROPOSALS_PER_EXPERT * num_experts // row_work), 1000 * num_experts**2)


def improve(
    load_ME: NDArray[np.integer],
    group_E: NDArray[np.int32],
    num_groups: int,
    seed: int,
    num_proposals: int,
    first_start: int = 0,
    traffic: GroupTraffic | None = None,
    moves: Moves | None = None,
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
        traffic: what the copies that enter or leave the busiest group cost; nothing by default.
        moves: what experts that leave their group cost; nothing by default.

    Returns:
        The group of every expert, int32; never worse than `group_E`.
    """
    num_experts = len(group_E)
    total_E = load_ME.sum(axis=0, dtype=np.int64)
    if num_groups == 1 or (num_groups == num_experts and traffic is None) or not total_E.any():
        return group_E  # swaps are impossible, exchange whole groups that are alike, or move no load
    order_E = np.argsort(-total_E, kind="stable")
    # The objective must fit 32 bits. What the shift loses is less than the search can tell apart.
    shift = max(0, int(total_E.sum()).bit_length() - 31)
    load_EM = np.ascontiguousarray((load_ME[:, order_E] >> shift).T, dtype=np.int32)
    group_X = group_E[order_E].astype(np.int64)
    if traffic is None:
        local_NXM, node_P = np.zeros((1, num_experts, 0), dtype=np.int32), np.zeros(num_groups, dtype=np.int64)
        out_PM, price = np.zeros((num_groups, 0), dtype=np.int32), 0
    else:
        local_NXM = np.ascontiguousarray(traffic.local_NEM[:, order_E] >> shift, dtype=np.int32)
        node_P, out_PM, price = traffic.node_P, (traffic.out_PM >> shift).astype(np.int32), traffic.price
    from_X, move_price = (
        (group_X, 0) if moves is None else (moves.from_E[order_E].astype(np.int64), moves.price >> shift)
    )
    tokens_X = load_EM.sum(axis=1, dtype=np.int64)
    total_NX = tokens_X + ((tokens_X - local_NXM.sum(axis=2, dtype=np.int64)) * price >> UNIT_BITS)
    for start in range(first_start, NUM_STARTS):
        stream = (seed * NUM_STARTS + start) % (1 << 63)
        group_X = _accept_swaps(
            load_EM,
            local_NXM,
            node_P,
            out_PM,
            price,
            total_NX,
            from_X,
            move_price,
            group_X,
            stream,
            num_proposals // NUM_STARTS,
            start,
        )
    result_E = np.empty_like(group_E)
    result_E[order_E] = group_X
    if shift:
        before, after = (objective(load_ME, each_E, num_groups, traffic, moves) for each_E in (group_E, result_E))
        return group_E if after > before else result_E
    return result_E


@compile_once
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


@compile_once
def _busiest_after_swap(
    rest_M: NDArray[np.int32],
    load_PM: NDArray[np.int32],
    local_PM: NDArray[np.int32],
    out_PM: NDArray[np.int32],
    a: int,
    b: int,
    load_EM: NDArray[np.int32],
    local_aEM: NDArray[np.int32],
    local_bEM: NDArray[np.int32],
    one: int,
    other: int,
) -> int:
    """Return the sum over rows of the copies of the busiest group, after expert `one` of a and `other` of b swap.

    `rest_M` has the copies of the busiest of all other groups.
    """
    load_a_M, load_b_M, local_a_M, local_b_M = load_PM[a], load_PM[b], local_PM[a], local_PM[b]
    out_a_M, out_b_M, one_M, other_M = out_PM[a], out_PM[b], load_EM[one], load_EM[other]
    one_at_a_M, other_at_a_M = local_aEM[one], local_aEM[other]
    one_at_b_M, other_at_b_M = local_bEM[one], local_bEM[other]
    busiest = np.int32(0)
    for row in range(len(rest_M)):
        # 32 bits hold every step. Without the casts numba computes in 64, on half as many rows at a time.
        moved = np.int32(other_M[row] - one_M[row])
        stays_a = np.int32(local_a_M[row] + other_at_a_M[row] - one_at_a_M[row])
        stays_b = np.int32(local_b_M[row] + one_at_b_M[row] - other_at_b_M[row])
        copies_a = np.int32(max(np.int32(load_a_M[row] + moved), out_a_M[row]) - stays_a)
        copies_b = np.int32(max(np.int32(load_b_M[row] - moved), out_b_M[row]) - stays_b)
        busiest = np.int32(busiest + max(rest_M[row], max(copies_a, copies_b)))
    return int(busiest)


@compile_once
def _choose_pair(each_PM: NDArray[np.int32], bits: np.uint64) -> tuple[int, int]:
    """Draw the largest group of a random row and any other group."""
    num_groups, num_rows = each_PM.shape
    drawn = np.int64((bits >> np.uint64(32)) * np.uint64(num_rows) >> np.uint64(32))
    a = int(np.argmax(each_PM[:, drawn]))
    b = int(np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(num_groups - 1) >> np.uint64(32)))
    if b >= a:
        b += 1
    return a, b


@compile_once
def _write_rest(each_PM: NDArray[np.int32], a: int, b: int, rest_M: NDArray[np.int32]) -> None:
    """Write the largest of all groups but a and b to `rest_M`."""
    rest_M[:] = 0
    for group in range(len(each_PM)):
        if group != a and group != b:
            each_M = each_PM[group]
            for row in range(len(rest_M)):
                rest_M[row] = max(rest_M[row], each_M[row])


@compile_once
def _place(member_X: NDArray[np.int64], expert: int) -> int:
    """Return how many members come before `expert`."""
    place = 0
    for member in member_X:  # no early exit: the whole loop is one vector instruction or a few
        place += int(member < expert)
    return place


@compile_once
def _exchange(member_X: NDArray[np.int64], at: int, expert: int) -> None:
    """Replace the member at `at` by `expert`, and keep members in order."""
    while at > 0 and member_X[at - 1] > expert:
        member_X[at] = member_X[at - 1]
        at -= 1
    while at + 1 < len(member_X) and member_X[at + 1] < expert:
        member_X[at] = member_X[at + 1]
        at += 1
    member_X[at] = expert


@compile_once
def _accept_swaps(
    load_EM: NDArray[np.int32],
    local_NEM: NDArray[np.int32],
    node_P: NDArray[np.int64],
    out_PM: NDArray[np.int32],
    price: int,
    total_NE: NDArray[np.int64],
    from_E: NDArray[np.int64],
    move_price: int,
    group_E: NDArray[np.int64],
    seed: int,
    num_proposals: int,
    halvings: int,
) -> NDArray[np.int64]:
    """Run one search; experts and the members of every group are sorted by falling load.

    With a price of 0, traffic is free, and its arrays have no rows. `total_NE` is what an expert adds to a group of
    each node: its tokens, and the price of its copies from other nodes. `from_E` has the groups before.
    """
    num_experts, num_rows = load_EM.shape
    num_groups, is_free = len(node_P), price == 0
    size = num_experts // num_groups
    load_PM = np.zeros((num_groups, num_rows), dtype=np.int32)
    local_PM = np.zeros(out_PM.shape, dtype=np.int32)
    copies_PM = np.zeros(out_PM.shape, dtype=np.int32)
    total_P = np.zeros(num_groups, dtype=np.int64)
    member_PX = np.empty((num_groups, size), dtype=np.int64)
    filled_P = np.zeros(num_groups, dtype=np.int64)
    for expert in range(num_experts):
        group = group_E[expert]
        node = node_P[group]
        member_PX[group, filled_P[group]] = expert
        filled_P[group] += 1
        for row in range(num_rows):
            load_PM[group, row] += load_EM[expert, row]
        if not is_free:
            for row in range(num_rows):
                local_PM[group, row] += local_NEM[node, expert, row]
        total_P[group] += total_NE[node, expert]
    largest, ideal, busiest = 0, 0, 0
    for row in range(num_rows):
        largest += int(load_PM[:, row].max())
        ideal += int(load_PM[:, row].sum()) // num_groups
    if not is_free:
        for group in range(num_groups):
            for row in range(num_rows):
                copies_PM[group, row] = max(load_PM[group, row], out_PM[group, row]) - local_PM[group, row]
        for row in range(num_rows):
            busiest += int(copies_PM[:, row].max())
        ideal = 0
        for expert in range(num_experts):
            ideal += total_NE[:, expert].min()
        ideal //= num_groups
    num_moved = 0
    for expert in range(num_experts):
        num_moved += int(group_E[expert] != from_E[expert])
    cost = largest + (busiest * price >> UNIT_BITS) + num_moved * move_price
    best_cost, best_PX = cost, member_PX.copy()
    state = np.array([seed], dtype=np.uint64)
    rest_M = np.empty(num_rows, dtype=np.int32)
    busiest_rest_M = np.empty(out_PM.shape[1], dtype=np.int32)
    window = max(2, size // 16)
    first_threshold = (cost // max(2 * num_experts, num_experts**2 // 16)) >> halvings
    num_tries = min(_PROPOSALS_PER_PAIR, size**2)
    num_pairs = max(1, num_proposals // num_tries)
    for left in range(num_pairs, 0, -1):
        if best_cost <= ideal + (ideal >> _CLOSE_ENOUGH):
            break
        threshold = first_threshold * left // num_pairs * left // num_pairs
        # Where traffic has a price, the busiest group of a row takes turns with its largest.
        a, b = _choose_pair(load_PM if is_free or left % 2 == 1 else copies_PM, next_random(state))
        _write_rest(load_PM, a, b, rest_M)
        of_rest = 0  # what the busiest of all other groups cost: no swap between a and b brings dispatch below it
        if not is_free:
            _write_rest(copies_PM, a, b, busiest_rest_M)
            of_rest = int(busiest_rest_M.sum()) * price >> UNIT_BITS
        at_a, at_b = node_P[a], node_P[b]
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
            limit = cost + threshold
            more_a = total_NE[at_a, other] - total_NE[at_a, one]
            more_b = total_NE[at_b, one] - total_NE[at_b, other]
            # The total of a group is at most the objective.
            if total_P[a] + more_a > limit or total_P[b] + more_b > limit:
                continue
            more_moved = (
                int(b != from_E[one]) - int(a != from_E[one]) + int(a != from_E[other]) - int(b != from_E[other])
            )
            proposed = (num_moved + more_moved) * move_price
            proposed += _largest_after_swap(rest_M, load_a_M, load_b_M, load_EM[one], load_EM[other])
            if proposed + of_rest > limit:
                continue
            if not is_free:
                copies = _busiest_after_swap(
                    busiest_rest_M,
                    load_PM,
                    local_PM,
                    out_PM,
                    a,
                    b,
                    load_EM,
                    local_NEM[at_a],
                    local_NEM[at_b],
                    one,
                    other,
                )
                proposed += copies * price >> UNIT_BITS
                if proposed > limit:
                    continue
            cost = proposed
            num_moved += more_moved
            for row in range(num_rows):
                moved = load_EM[other, row] - load_EM[one, row]
                load_a_M[row] += moved
                load_b_M[row] -= moved
            if not is_free:
                for row in range(num_rows):
                    local_PM[a, row] += local_NEM[at_a, other, row] - local_NEM[at_a, one, row]
                    local_PM[b, row] += local_NEM[at_b, one, row] - local_NEM[at_b, other, row]
                    copies_PM[a, row] = max(load_a_M[row], out_PM[a, row]) - local_PM[a, row]
                    copies_PM[b, row] = max(load_b_M[row], out_PM[b, row]) - local_PM[b, row]
            total_P[a] += more_a
            total_P[b] += more_b
            _exchange(member_a_X, int(i), other)
            _exchange(member_b_X, j, one)
            if cost < best_cost:
                best_cost = cost
                best_PX[:] = member_PX
    best_E = np.empty(num_experts, dtype=np.int64)
    for group in range(num_groups):
        best_E[best_PX[group]] = group
    return best_E
