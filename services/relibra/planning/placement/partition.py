"""Split experts into equally large groups so that the largest group of every row stays small.

Groups are nodes or ranks, whichever the caller balances. The objective is `sum_m max_g load[m, g]`: the tokens of the
largest group of every row, summed over rows. This module has the simple parts; `swap_search` lowers the objective.

M rows, E experts, X experts to add, P groups.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once


def spread(load_E: NDArray[np.int64], num_groups: int) -> NDArray[np.int32]:
    """Longest processing time first: each expert, heaviest first, joins the lightest group that has room."""
    room_P = np.full(num_groups, len(load_E) // num_groups)
    return fill(load_E, np.zeros(num_groups, dtype=np.int64), room_P)


def fill(load_X: NDArray[np.int64], group_load_P: NDArray[np.int64], room_P: NDArray[np.integer]) -> NDArray[np.int32]:
    """Add experts, heaviest first, each to the lightest group that has room; equal loads go by index.

    Args:
        load_X: tokens of the experts to add; there is room for exactly these.
        group_load_P: tokens that every group has already.
        room_P: the number of experts that every group can still take.
    """
    order_X = np.argsort(-load_X, kind="stable")
    return _fill_groups(load_X, order_X, group_load_P.astype(np.int64), room_P.astype(np.int64))


def align(group_E: NDArray[np.int32], previous_E: NDArray[np.int32], num_groups: int) -> NDArray[np.int32]:
    """Renumber groups by a greedy matching, so that many experts stay in the group they were in.

    Groups are alike, so renumbering saves moves and changes no load.
    """
    overlap_PP = np.bincount(group_E.astype(np.int64) * num_groups + previous_E, minlength=num_groups**2)
    return _match_groups(overlap_PP, np.argsort(-overlap_PP, kind="stable"), num_groups)[group_E]


def largest_groups(load_ME: NDArray[np.integer], group_E: NDArray[np.int32], num_groups: int) -> int:
    """Return the objective of a split: the tokens of the largest group of every row, summed over rows."""
    by_group_E = np.argsort(group_E, kind="stable")
    load_MP = load_ME[:, by_group_E].reshape(len(load_ME), num_groups, -1).sum(axis=2, dtype=np.int64)
    return int(load_MP.max(axis=1).sum())


@compile_once
def _fill_groups(
    load_X: NDArray[np.int64],
    order_X: NDArray[np.int64],
    group_load_P: NDArray[np.int64],
    room_P: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Fill the groups with experts in the given order; `group_load_P` and `room_P` are changed in place."""
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


@compile_once
def _match_groups(overlap_PP: NDArray[np.int64], order_PP: NDArray[np.int64], num_groups: int) -> NDArray[np.int32]:
    """Give every group the number of a group it overlaps with, largest overlap first, and number the rest in order."""
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
