"""The replicas of every cell of a layer: greedy rules on every node, and a search for the limit that they get.

The slowest rank of a cell is brought down to a *limit* in tokens: the mean of its heaviest node or, if the rules do not
reach that, the smallest limit that a rule reaches on every node. Binary search finds it, as in UltraEP. Three greedy
rules are tried:

- *Export* moves the tokens of the heaviest rank above the limit to the rank where they fit best. It makes the fewest
  replicas where ranks have room, and runs out of slots where they have little.
- *Fill* applies Walker's alias method to balance: the lightest rank is filled up to the limit from one expert of a
  heavier rank, and is then finished. The donor may fall below the limit and be filled in turn, so one transfer per rank
  is enough where experts are large. *Fill* is tried with two ways to break ties.

The rule that reaches the limit with the fewest replicas wins. A rule that does not reach it still leaves a
valid choice, and the binary search continues from the slowest rank of that choice.

The rules visit the ranks of a node from the lightest, and the experts of a rank from the heaviest. So the limit of a
node follows from loads, and not from names.

Where replicas have a price, a cell costs its limit plus the price of every replica of its *busiest* rank, the one that
most replicas leave or enter: links work side by side, and a cell waits for the busiest one. For every smaller number of
replicas of the busiest rank, the limit that they reach is searched in the same way, and the cheapest choice wins.

M rows, E experts, N nodes, G ranks per node, S slots, X experts of a node (rank by rank), Y replicas. An axis named 2
or 3 is a tuple of as many fields.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once

_EXPORT, _HEAVIEST_DONOR, _SMALLEST_EXPERT = -1, 0, 1

_CLOSE_ENOUGH = 13
"""Binary search stops where the limit is known to 2**-13 = 0.01 %."""
_CLOSE_TO_PRICE = 3
"""Where replicas have a price, it also stops where the limit is known to 2**-3 of the price."""


class _Room(NamedTuple):
    """Scratch memory of the rules on one node; its content before a call does not matter."""

    load_X: NDArray[np.int64]
    """Tokens of every expert that its home still has."""
    load_G: NDArray[np.int64]
    """Tokens of every rank."""
    held_GS: NDArray[np.int64]
    """The experts in the slots of every rank."""
    used_G: NDArray[np.int64]
    """Slots of every rank in use."""
    trial_Y3: NDArray[np.int64]
    """The replicas that a rule makes: (place of the expert on the node, rank, tokens)."""
    found_Y3: NDArray[np.int64]
    """The replicas of the best rule so far."""


class _Choice(NamedTuple):
    """The replicas of all nodes in one cell."""

    replica_NY3: NDArray[np.int64]
    """(place of the expert on the node, rank, tokens)."""
    num_N: NDArray[np.int64]
    """The number of replicas on every node."""
    busiest_N: NDArray[np.int64]
    """The most replicas that leave or enter one rank of the node."""


@compile_once
def _export(room: _Room, min_tokens: int, limit: int) -> int:
    """Move the excess of the heaviest rank to the rank where it fits best, while it fits; return how many replicas."""
    load_X, load_G, held_GS, used_G, replica_Y3, _ = room
    num_ranks, slots = held_GS.shape
    share = len(load_X) // num_ranks
    num_replicas = 0
    while True:
        donor = np.argmax(load_G)
        excess = load_G[donor] - limit
        if excess <= 0:
            return num_replicas
        expert = donor * share + np.argmax(load_X[donor * share : (donor + 1) * share])
        tokens = max(min(excess, load_X[expert]), min_tokens)
        if tokens > load_X[expert]:
            return num_replicas
        best, best_slack = -1, 0
        for rank in range(num_ranks):
            slack = limit - load_G[rank]
            if used_G[rank] == slots or slack < min_tokens or (held_GS[rank, : used_G[rank]] == expert).any():
                continue
            fits = slack >= tokens
            if best < 0 or (slack < best_slack if fits and best_slack >= tokens else slack > best_slack):
                best, best_slack = rank, slack
        if best < 0:
            return num_replicas
        tokens = min(tokens, best_slack)
        replica_Y3[num_replicas, 0] = expert
        replica_Y3[num_replicas, 1] = best
        replica_Y3[num_replicas, 2] = tokens
        num_replicas += 1
        held_GS[best, used_G[best]] = expert
        used_G[best] += 1
        load_G[donor] -= tokens
        load_G[best] += tokens
        load_X[expert] -= tokens


@compile_once
def _fill(room: _Room, min_tokens: int, limit: int, rule: int) -> int:
    """Fill the lightest rank from the expert of a heavier rank that fills it best; repeat; return how many replicas."""
    load_X, load_G, held_GS, used_G, replica_Y3, _ = room
    num_ranks, slots = held_GS.shape
    share = len(load_X) // num_ranks
    num_replicas = 0
    while True:
        rank, heaviest = -1, np.int64(0)
        for candidate in range(num_ranks):
            load = load_G[candidate]
            heaviest = max(heaviest, load)
            is_open = used_G[candidate] < slots and load + min_tokens <= limit
            if is_open and (rank < 0 or load < load_G[rank]):
                rank = candidate
        if heaviest <= limit:
            return num_replicas
        if rank < 0:
            return num_replicas
        slack = limit - load_G[rank]
        best, best_tokens, best_tie = -1, np.int64(0), np.int64(0)
        for donor in range(num_ranks):
            donor_load = load_G[donor]
            if donor_load <= limit:
                continue
            for expert in range(donor * share, (donor + 1) * share):
                remaining = load_X[expert]
                tokens = min(slack, remaining)
                if tokens < best_tokens or remaining < min_tokens:
                    continue
                tie = donor_load if rule == _HEAVIEST_DONOR else -remaining
                if best < 0 or tokens > best_tokens or tie > best_tie:
                    if (held_GS[rank, : used_G[rank]] == expert).any():
                        continue
                    best, best_tokens, best_tie = expert, tokens, tie
        if best < 0:
            used_G[rank] = slots
            continue
        replica_Y3[num_replicas, 0] = best
        replica_Y3[num_replicas, 1] = rank
        replica_Y3[num_replicas, 2] = best_tokens
        num_replicas += 1
        held_GS[rank, used_G[rank]] = best
        used_G[rank] += 1
        load_G[best // share] -= best_tokens
        load_G[rank] += best_tokens
        load_X[best] -= best_tokens


@compile_once
def _try_node(node_load_X: NDArray[np.int64], min_tokens: int, limit: int, room: _Room) -> tuple[int, int]:
    """Find the best choice of the rules for `limit`; return the tokens of its slowest rank and its number of replicas.

    A choice that does not reach the limit is valid too.
    """
    load_X, load_G, _, used_G, trial_Y3, found_Y3 = room
    num_ranks = len(load_G)
    share = len(load_X) // num_ranks
    best_slowest, best_replicas = -1, 0
    for rule in (_EXPORT, _HEAVIEST_DONOR, _SMALLEST_EXPERT):
        load_X[:] = node_load_X
        used_G[:] = 0
        num_heavy = 0
        for rank in range(num_ranks):
            load = 0
            for expert in range(rank * share, (rank + 1) * share):
                load += load_X[expert]
            load_G[rank] = load
            num_heavy += int(load > limit)
        is_export = rule == _EXPORT
        num_replicas = _export(room, min_tokens, limit) if is_export else _fill(room, min_tokens, limit, rule)
        slowest = int(load_G.max())
        if slowest <= limit:
            better = best_slowest < 0 or best_slowest > limit or num_replicas < best_replicas
        else:
            better = best_slowest < 0 or slowest < best_slowest
        if better:
            best_slowest, best_replicas = slowest, num_replicas
            found_Y3[:num_replicas] = trial_Y3[:num_replicas]
        if best_slowest <= limit and (rule == _HEAVIEST_DONOR or best_replicas == num_heavy):
            break
    return best_slowest, best_replicas


@compile_once
def _lower_node(
    node_load_X: NDArray[np.int64],
    min_tokens: int,
    busiest: int,
    too_low: int,
    middle: int,
    slowest: int,
    tolerance: int,
    room: _Room,
    best_Y3: NDArray[np.int64],
) -> tuple[int, int]:
    """Write a choice for the smallest limit that the rules reach with at most `busiest` replicas of any rank.

    Limits between `too_low` and `slowest` are searched, `middle` first. Returns the tokens of the slowest rank and the
    number of replicas. If no limit below `slowest` is reached, returns `slowest` unchanged, and 0.
    """
    num_replicas = 0
    while True:
        reached, num_found = _try_node(node_load_X, min_tokens, middle, room)
        fits = busiest >= len(best_Y3) or _busiest(room.found_Y3[:num_found], room) <= busiest
        if reached > middle or not fits:
            too_low = middle
        if reached < slowest and fits:
            slowest, num_replicas = reached, num_found
            best_Y3[:num_found] = room.found_Y3[:num_found]
        if slowest - too_low <= max(tolerance, too_low >> _CLOSE_ENOUGH):
            return slowest, num_replicas
        middle = (too_low + slowest) // 2


@compile_once
def _busiest(replica_Y3: NDArray[np.int64], room: _Room) -> int:
    """Return the most replicas that leave or enter one rank of a node."""
    num_left_G, num_come_G = room.load_G, room.used_G
    share = len(room.load_X) // len(num_left_G)
    num_left_G[:] = 0
    num_come_G[:] = 0
    for replica in range(len(replica_Y3)):
        num_left_G[replica_Y3[replica, 0] // share] += 1
        num_come_G[replica_Y3[replica, 1]] += 1
    return int(max(num_left_G.max(), num_come_G.max()))


@compile_once
def _balance(load_NX: NDArray[np.int64], limit: int, min_tokens: int, room: _Room, best: _Choice) -> int:
    """Write a choice for the smallest limit, at least `limit`, that all nodes reach; return that limit."""
    slowest_N = np.empty(len(load_NX), dtype=np.int64)
    for node in range(len(load_NX)):
        plain = load_NX[node].reshape(len(room.load_G), -1).sum(axis=1).max()
        best_Y3 = best.replica_NY3[node]
        slowest_N[node], best.num_N[node] = _lower_node(
            load_NX[node], min_tokens, len(best_Y3), limit - 1, limit, plain, 1, room, best_Y3
        )
        limit = max(limit, slowest_N[node])
    for node in range(len(load_NX)):
        if best.num_N[node] > 0 and slowest_N[node] < limit:  # a later node raised the limit, so fewer replicas may do
            reached, num_found = _try_node(load_NX[node], min_tokens, limit, room)
            if reached <= limit and num_found < best.num_N[node]:
                best.num_N[node] = num_found
                best.replica_NY3[node, :num_found] = room.found_Y3[:num_found]
    return limit


@compile_once
def _weigh(
    load_NX: NDArray[np.int64], limit: int, min_tokens: int, price: int, room: _Room, best: _Choice, fewer: _Choice
) -> tuple[int, int]:
    """Write the cheapest choice with fewer and fewer replicas; return its limit and its cost.

    `best` holds the choice of `_balance` with its `limit`, and is replaced by cheaper ones. `fewer` is scratch.
    """
    tolerance = max(1, price >> _CLOSE_TO_PRICE)
    fewer.num_N[:], fewer.replica_NY3[:] = best.num_N, best.replica_NY3
    for node in range(len(load_NX)):
        fewer.busiest_N[node] = _busiest(best.replica_NY3[node, : best.num_N[node]], room)
    busiest = fewer.busiest_N.max()
    cost, raised = limit + price * busiest, limit
    while busiest > 0:
        busiest -= 1
        too_much = cost - price * busiest
        for node in range(len(load_NX)):
            if fewer.busiest_N[node] <= busiest or raised >= too_much:
                continue
            fewer_Y3 = fewer.replica_NY3[node]
            slowest, num_found = _lower_node(
                load_NX[node], min_tokens, busiest, raised - 1, too_much - 1, too_much, tolerance, room, fewer_Y3
            )
            raised = max(raised, slowest)
            if slowest < too_much:
                fewer.num_N[node] = num_found
                fewer.busiest_N[node] = _busiest(fewer_Y3[:num_found], room)
        if raised < too_much:
            busiest = fewer.busiest_N.max()
            limit, cost = raised, raised + price * busiest
            best.num_N[:], best.replica_NY3[:] = fewer.num_N, fewer.replica_NY3
    return limit, cost


@compile_once
def _order_by_load(
    load_E: NDArray[np.int64], expert_X: NDArray[np.int64], load_G: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Order the experts of every rank of a node, heaviest first, in place; return its ranks, lightest first."""
    num_ranks = len(load_G)
    share = len(expert_X) // num_ranks
    rank_G = np.arange(num_ranks)
    for rank in range(num_ranks):
        first, load = rank * share, 0
        for end in range(first, first + share):
            expert, at = expert_X[end], end
            load += load_E[expert]
            while at > first and load_E[expert_X[at - 1]] < load_E[expert]:
                expert_X[at] = expert_X[at - 1]
                at -= 1
            expert_X[at] = expert
        load_G[rank] = load
        at = rank
        while at > 0 and load_G[rank_G[at - 1]] >= load:
            other = rank_G[at - 1] * share
            if load_G[rank_G[at - 1]] == load:  # the first experts that differ decide
                place = 0
                while place < share - 1 and load_E[expert_X[other + place]] == load_E[expert_X[first + place]]:
                    place += 1
                if load_E[expert_X[other + place]] <= load_E[expert_X[first + place]]:
                    break
            rank_G[at] = rank_G[at - 1]
            at -= 1
        rank_G[at] = rank
    return rank_G


@compile_once
def replicate_rows(
    load_ME: NDArray[np.int64], by_rank_NX: NDArray[np.int64], num_ranks: int, slots: int, min_tokens: int, price: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Choose the replicas of every row of one layer.

    Args:
        load_ME: tokens of every expert, contiguous.
        by_rank_NX: the experts of every node, rank by rank.
        num_ranks: G.
        slots: replicas that a rank can hold.
        min_tokens: the fewest tokens a replica may have.
        price: what each replica of the busiest rank costs, in tokens; 0 where only balance counts.

    Returns:
        The fields of `LayerReplicas` in order: tokens of the slowest rank `[M]`; these plus what replicas cost `[M]`;
        where the replicas of each row end `[M]`; (expert, rank) of replicas `[Y, 2]`; tokens of replicas `[Y]`.
    """
    num_rows = len(load_ME)
    num_nodes, num_members = by_rank_NX.shape
    most, share = num_ranks * slots, num_members // num_ranks
    limit_M = np.zeros(num_rows, dtype=np.int64)
    cost_M = np.zeros(num_rows, dtype=np.int64)
    end_M = np.zeros(num_rows, dtype=np.int64)
    index_Y2 = np.empty((num_rows * num_nodes * most, 2), dtype=np.int32)
    tokens_Y = np.empty(num_rows * num_nodes * most, dtype=np.int64)
    load_NX = np.empty((num_nodes, num_members), dtype=np.int64)
    room = _Room(
        np.empty(num_members, dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty((num_ranks, slots), dtype=np.int64),
        np.empty(num_ranks, dtype=np.int64),
        np.empty((most, 3), dtype=np.int64),
        np.empty((most, 3), dtype=np.int64),
    )
    best, fewer = _no_choice(num_nodes, most), _no_choice(num_nodes, most)
    num_written = 0
    expert_NX, rank_NG = by_rank_NX.copy(), np.empty((num_nodes, num_ranks), dtype=np.int64)
    for row in range(num_rows):
        limit = 0
        for node in range(num_nodes):
            rank_NG[node] = _order_by_load(load_ME[row], expert_NX[node], room.load_G)
            for member in range(num_members):
                home = rank_NG[node, member // share]
                load_NX[node, member] = load_ME[row, expert_NX[node, home * share + member % share]]
            limit = max(limit, -(-load_NX[node].sum() // num_ranks))
        limit = cost = _balance(load_NX, limit, min_tokens, room, best)
        if price > 0:
            limit, cost = _weigh(load_NX, limit, min_tokens, price, room, best, fewer)
        for node in range(num_nodes):
            for replica in range(best.num_N[node]):
                home, place = divmod(best.replica_NY3[node, replica, 0], share)
                index_Y2[num_written, 0] = expert_NX[node, rank_NG[node, home] * share + place]
                index_Y2[num_written, 1] = node * num_ranks + rank_NG[node, best.replica_NY3[node, replica, 1]]
                tokens_Y[num_written] = best.replica_NY3[node, replica, 2]
                num_written += 1
        limit_M[row], cost_M[row], end_M[row] = limit, cost, num_written
    return limit_M, cost_M, end_M, index_Y2[:num_written], tokens_Y[:num_written]


@compile_once
def _no_choice(num_nodes: int, most: int) -> _Choice:
    return _Choice(
        np.empty((num_nodes, most, 3), dtype=np.int64),
        np.empty(num_nodes, dtype=np.int64),
        np.empty(num_nodes, dtype=np.int64),
    )
