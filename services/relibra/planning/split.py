"""How the tokens of a cell are split over the copies of their experts: what every rank computes alike at run time.

A plan says which replicas there are, long before the router runs, because weights need time to travel. Tokens need
none, so the split follows the counts of the tokens that really come. It is made of whole numbers, and of the counts
alone: equal counts give equal splits on all ranks (S1) and hosts (S8).

1. *How many tokens of an expert each copy computes*: the largest load of a rank is the smallest these copies allow.
   Expert after expert is poured over its copies like water, twice. Then tokens move along chains of copies, from the
   fullest rank to the emptiest that it can reach. If it reaches none that is emptier by two tokens, then all ranks that
   it reaches are as full, and their tokens have copies nowhere else: nothing can be better.
2. *How many of them come from other nodes*: so that equally many enter every rank of a node, as far as step 1 leaves it
   open. In an all-to-all the busiest network adapter decides the time of dispatch.
3. *Which ones*: a rank keeps as many of its own tokens as its own copy takes. All others fill the copies in order of
   their source ranks, those from inside the node and those from other nodes apart.

Plans are made with the same functions as steps are run, so a plan knows what will come of its replicas.

E experts, R EP ranks, G ranks of a node, Y replicas of one cell by expert and rank, X experts with replicas, C copies:
the home of each such expert and then its replicas, M rows, L layers.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

try:
    from relibra.planning.jit import compile_once
except ModuleNotFoundError:  # a trainer has no numba: it splits on a GPU, and in plain Python gets the same, slowly

    def compile_once(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Return the function as it is."""
        return function


_NUM_POURS = 2
_MOST_MOVES = 1 << 12
"""A bound on the moves in one node, far above what any cell needs."""


def split_step(
    load_MLE: NDArray[np.int64],
    crossing_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    index_Y4: NDArray[np.int32],
    gpus_per_node: int,
    num_ranks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split all cells of a step; the replicas are those of all cells, (row, layer, expert, rank) in order.

    Args:
        load_MLE: token copies.
        crossing_MLE: those that come from other nodes than that of the expert.
        home_LE: the placement.
        index_Y4: the replicas.
        gpus_per_node: G.
        num_ranks: R.

    Returns:
        The tokens of each replica, and those of them that come from other nodes; the homes have the rest.
    """
    tokens_Y, crossing_Y = np.zeros(len(index_Y4), dtype=np.int64), np.zeros(len(index_Y4), dtype=np.int64)
    _split_cells(
        np.ascontiguousarray(load_MLE, dtype=np.int64),
        np.ascontiguousarray(crossing_MLE, dtype=np.int64),
        np.ascontiguousarray(home_LE, dtype=np.int32),
        np.ascontiguousarray(index_Y4, dtype=np.int32),
        gpus_per_node,
        num_ranks,
        tokens_Y,
        crossing_Y,
    )
    return tokens_Y, crossing_Y


def source_share(
    counts_RE: NDArray[np.integer],
    home_E: NDArray[np.int32],
    expert_Y: NDArray[np.int32],
    rank_Y: NDArray[np.int32],
    gpus_per_node: int,
    rank: int,
) -> NDArray[np.int64]:
    """Return how many of its own tokens one source rank sends to each replica of a cell; the homes get the rest.

    Over all source ranks, the shares of a replica sum to its tokens in `split_step`.

    Args:
        counts_RE: the token copies of every source rank.
        home_E: the placement.
        expert_Y: the expert of each replica, in order.
        rank_Y: its rank; in order for each expert.
        gpus_per_node: G.
        rank: the source rank.
    """
    return _source_share(
        np.ascontiguousarray(counts_RE, dtype=np.int64),
        np.ascontiguousarray(home_E, dtype=np.int32),
        np.ascontiguousarray(expert_Y, dtype=np.int32),
        np.ascontiguousarray(rank_Y, dtype=np.int32),
        gpus_per_node,
        rank,
    )


@compile_once
def _split_cells(
    load_MLE: NDArray[np.int64],
    crossing_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    index_Y4: NDArray[np.int32],
    gpus_per_node: int,
    num_ranks: int,
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
) -> None:
    begin = 0
    while begin < len(index_Y4):
        row, layer, end = index_Y4[begin, 0], index_Y4[begin, 1], begin + 1
        while end < len(index_Y4) and index_Y4[end, 0] == row and index_Y4[end, 1] == layer:
            end += 1
        _split_cell(
            load_MLE[row, layer],
            crossing_MLE[row, layer],
            home_LE[layer],
            index_Y4[begin:end, 2],
            index_Y4[begin:end, 3],
            gpus_per_node,
            num_ranks,
            tokens_Y[begin:end],
            crossing_Y[begin:end],
        )
        begin = end


@compile_once
def _source_share(
    counts_RE: NDArray[np.int64],
    home_E: NDArray[np.int32],
    expert_Y: NDArray[np.int32],
    rank_Y: NDArray[np.int32],
    gpus_per_node: int,
    rank: int,
) -> NDArray[np.int64]:
    num_ranks, num_experts = counts_RE.shape
    load_E, local_E = np.zeros(num_experts, dtype=np.int64), np.zeros(num_experts, dtype=np.int64)
    node_E = home_E // gpus_per_node
    for source in range(num_ranks):
        node = source // gpus_per_node
        for expert in range(num_experts):
            load_E[expert] += counts_RE[source, expert]
            local_E[expert] += counts_RE[source, expert] * (node_E[expert] == node)
    num_replicas = len(expert_Y)
    tokens_Y, crossing_Y = np.zeros(num_replicas, dtype=np.int64), np.zeros(num_replicas, dtype=np.int64)
    crossing_E = load_E - local_E
    _split_cell(load_E, crossing_E, home_E, expert_Y, rank_Y, gpus_per_node, num_ranks, tokens_Y, crossing_Y)
    share_Y = np.zeros(num_replicas, dtype=np.int64)
    begin = 0
    while begin < num_replicas:
        expert, end = expert_Y[begin], begin + 1
        while end < num_replicas and expert_Y[end] == expert:
            end += 1
        home, has = home_E[expert], int(counts_RE[rank, expert])
        if has > 0 and home // gpus_per_node != rank // gpus_per_node:
            before = 0
            for source in range(rank):
                if source // gpus_per_node != home // gpus_per_node:
                    before += int(counts_RE[source, expert])
            taken = int(crossing_E[expert])
            for replica in range(begin, end):
                taken -= int(crossing_Y[replica])
            for replica in range(begin, end):  # the home takes the first tokens, and replicas the next
                share_Y[replica] = _overlap(before, before + has, taken, taken + int(crossing_Y[replica]))
                taken += int(crossing_Y[replica])
        elif has > 0:
            first = home // gpus_per_node * gpus_per_node
            at_home = int(local_E[expert])
            for replica in range(begin, end):
                at_home -= int(tokens_Y[replica] - crossing_Y[replica])
            own = 0
            if rank == home:
                own = min(has, at_home)
            for replica in range(begin, end):
                if rank_Y[replica] == rank:
                    own = min(has, int(tokens_Y[replica] - crossing_Y[replica]))
                    share_Y[replica] = own
            before = 0
            for source in range(first, rank):
                before += int(counts_RE[source, expert]) - _num_kept(
                    source, home, at_home, counts_RE[source, expert], rank_Y, tokens_Y, crossing_Y, begin, end
                )
            taken = at_home - _num_kept(
                home, home, at_home, counts_RE[home, expert], rank_Y, tokens_Y, crossing_Y, begin, end
            )
            for replica in range(begin, end):
                holder = rank_Y[replica]
                left = int(tokens_Y[replica] - crossing_Y[replica])
                left -= min(int(counts_RE[holder, expert]), left)
                share_Y[replica] += _overlap(before, before + has - own, taken, taken + left)
                taken += left
        begin = end
    return share_Y


@compile_once
def _overlap(begin: int, end: int, other_begin: int, other_end: int) -> int:
    """Return the length that two ranges have in common."""
    return max(0, min(end, other_end) - max(begin, other_begin))


@compile_once
def _num_kept(
    source: int,
    home: int,
    at_home: int,
    has: int,
    rank_Y: NDArray[np.int32],
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
    begin: int,
    end: int,
) -> int:
    """Return how many of its tokens of an expert a rank keeps because it has a copy of the expert."""
    if source == home:
        return min(has, at_home)
    for replica in range(begin, end):
        if rank_Y[replica] == source:
            return int(min(has, tokens_Y[replica] - crossing_Y[replica]))
    return 0


@compile_once
def _split_cell(
    load_E: NDArray[np.int64],
    crossing_E: NDArray[np.int64],
    home_E: NDArray[np.int32],
    expert_Y: NDArray[np.int32],
    rank_Y: NDArray[np.int32],
    gpus_per_node: int,
    num_ranks: int,
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
) -> None:
    """Write the tokens of every replica of a cell, and those of them that come from other nodes."""
    num_replicas = len(expert_Y)
    num_experts = 0
    for replica in range(num_replicas):
        num_experts += replica == 0 or expert_Y[replica] != expert_Y[replica - 1]
    begin_X = np.empty(num_experts + 1, dtype=np.int64)
    rank_C = np.empty(num_replicas + num_experts, dtype=np.int64)
    tokens_C = np.zeros(num_replicas + num_experts, dtype=np.int64)
    crossing_C = np.zeros(num_replicas + num_experts, dtype=np.int64)
    copy, place = 0, 0
    for replica in range(num_replicas):
        expert = expert_Y[replica]
        if replica == 0 or expert != expert_Y[replica - 1]:
            begin_X[place] = copy
            rank_C[copy], tokens_C[copy], crossing_C[copy] = home_E[expert], load_E[expert], crossing_E[expert]
            copy += 1
            place += 1
        rank_C[copy] = rank_Y[replica]
        copy += 1
    begin_X[num_experts] = copy
    # The copies of a rank are a list: `first_R`, and then `next_C` of it, until -1. `place_C` is the expert among X.
    first_R, next_C, place_C = np.full(num_ranks, -1), np.empty_like(rank_C), np.empty_like(rank_C)
    for place in range(num_experts - 1, -1, -1):
        for copy in range(begin_X[place], begin_X[place + 1]):
            place_C[copy], next_C[copy], first_R[rank_C[copy]] = place, first_R[rank_C[copy]], copy
    load_R, enters_R = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_ranks, dtype=np.int64)
    crosses = False
    for expert in range(len(load_E)):
        load_R[home_E[expert]] += load_E[expert]
        enters_R[home_E[expert]] += crossing_E[expert]
        crosses = crosses or crossing_E[expert] > 0
    no_limit_C = np.full(len(rank_C), np.iinfo(np.int64).max)
    for _ in range(_NUM_POURS):
        for place in range(num_experts):
            _pour(begin_X[place], begin_X[place + 1], rank_C, no_limit_C, tokens_C, load_R)
    for first in range(0, num_ranks, gpus_per_node):
        _even_out(begin_X, place_C, rank_C, next_C, first_R, tokens_C, load_R, first, gpus_per_node)
    if crosses:
        for _ in range(_NUM_POURS):
            for place in range(num_experts):
                _pour(begin_X[place], begin_X[place + 1], rank_C, tokens_C, crossing_C, enters_R)
    replica = 0
    for place in range(num_experts):
        for copy in range(begin_X[place] + 1, begin_X[place + 1]):
            tokens_Y[replica], crossing_Y[replica] = tokens_C[copy], crossing_C[copy]
            replica += 1


@compile_once
def _pour(
    begin: int,
    end: int,
    rank_C: NDArray[np.int64],
    limit_C: NDArray[np.int64],
    part_C: NDArray[np.int64],
    sum_R: NDArray[np.int64],
) -> None:
    """Divide what the copies of one expert have anew, so that their ranks are as level as their limits allow."""
    total, lowest, highest = 0, np.iinfo(np.int64).max, 0
    for copy in range(begin, end):
        total += int(part_C[copy])
        sum_R[rank_C[copy]] -= part_C[copy]
        lowest = min(lowest, int(sum_R[rank_C[copy]]))
        highest = max(highest, int(sum_R[rank_C[copy]]))
    # The level is the lowest that takes everything: between the emptiest rank and all of it on the fullest.
    highest += total
    while lowest < highest:
        level = (lowest + highest) // 2
        taken = 0
        for copy in range(begin, end):
            taken += min(int(limit_C[copy]), max(0, level - int(sum_R[rank_C[copy]])))
        if taken < total:
            lowest = level + 1
        else:
            highest = level
    surplus = -total
    for copy in range(begin, end):
        part_C[copy] = min(int(limit_C[copy]), max(0, lowest - int(sum_R[rank_C[copy]])))
        surplus += int(part_C[copy])
    for copy in range(end - 1, begin - 1, -1):  # only ranks that are at the level are one above the level below
        if surplus > 0 and part_C[copy] > 0 and sum_R[rank_C[copy]] + part_C[copy] == lowest:
            part_C[copy] -= 1
            surplus -= 1
    for copy in range(begin, end):
        sum_R[rank_C[copy]] += part_C[copy]


@compile_once
def _even_out(
    begin_X: NDArray[np.int64],
    place_C: NDArray[np.int64],
    rank_C: NDArray[np.int64],
    next_C: NDArray[np.int64],
    first_R: NDArray[np.int64],
    tokens_C: NDArray[np.int64],
    load_R: NDArray[np.int64],
    first: int,
    gpus_per_node: int,
) -> None:
    """Lower the fullest rank of a node until no chain of copies leads from it to a rank emptier by two tokens."""
    from_G = np.empty(gpus_per_node, dtype=np.int64)  # the copy that a chain leaves to reach the rank
    to_G = np.empty(gpus_per_node, dtype=np.int64)  # the copy by which it reaches it; -1: not reached, -2: the start
    queue_G = np.empty(gpus_per_node, dtype=np.int64)
    for _ in range(_MOST_MOVES):
        fullest = first
        for rank in range(first, first + gpus_per_node):
            if load_R[rank] > load_R[fullest]:
                fullest = rank
        to_G[:] = -1
        to_G[fullest - first] = -2
        queue_G[0] = fullest
        taken, waiting, emptiest = 0, 1, fullest
        while taken < waiting:
            rank = int(queue_G[taken])
            taken += 1
            left = int(first_R[rank])
            while left >= 0:
                place = place_C[left]
                for copy in range(begin_X[place], begin_X[place + 1]):
                    reached = rank_C[copy] - first
                    if tokens_C[left] > 0 and to_G[reached] == -1:
                        from_G[reached], to_G[reached] = left, copy
                        queue_G[waiting] = rank_C[copy]
                        waiting += 1
                        if load_R[rank_C[copy]] < load_R[emptiest]:
                            emptiest = int(rank_C[copy])
                left = int(next_C[left])
        moved = int(load_R[fullest] - load_R[emptiest]) // 2
        if moved == 0:
            return
        rank = emptiest
        while rank != fullest:
            moved = min(moved, int(tokens_C[from_G[rank - first]]))
            rank = int(rank_C[from_G[rank - first]])
        rank = emptiest
        while rank != fullest:
            tokens_C[to_G[rank - first]] += moved
            tokens_C[from_G[rank - first]] -= moved
            rank = int(rank_C[from_G[rank - first]])
        load_R[fullest] -= moved
        load_R[emptiest] += moved
