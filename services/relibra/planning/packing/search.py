"""Which sequences share a micro-batch and where they start: a search by modelled time.

`placement/swap_search.py` finds homes of experts for given sequences. This search finds places of sequences for given
homes, by the same objective. In tokens of the largest group of ranks, summed over cells, it is

    tokens of the largest group + price x copies that enter or leave the busiest group

A change moves a sequence to another rank of its row, or lets two sequences of the same row or of two rows change
places, as far as `Changes` allow it. The search accepts changes below a falling threshold, keeps to the caps, and
returns the best places seen.

S sequences, M rows, L layers, R EP ranks, N nodes, P groups of ranks (nodes or ranks), C (row, source rank) pairs. An
axis named 2 is (tokens, attention work).
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once, next_random
from relibra.planning.job import Cluster
from relibra.planning.packing.caps import NO_LIMIT, Caps
from relibra.planning.packing.changes import MOVE, SWAP_IN_ROW, Changes
from relibra.planning.traffic import UNIT_BITS

_PROPOSALS_PER_SEQUENCE = 4000
_EXCESS_BITS = UNIT_BITS + 7
"""A token copy without memory costs 128 tokens, more than any change of its place saves."""
_COPIES_BITS = 28
"""Bits of all token copies of a step. Times the highest price of a copy and 2**10, they stay within 62 bits."""


def find_places(
    load_SLP: NDArray[np.int64],
    size_S2: NDArray[np.int64],
    cell_S: NDArray[np.int64],
    price: int,
    cluster: Cluster,
    caps: Caps,
    changes: Changes,
    seed: int,
) -> NDArray[np.int64]:
    """Fit rows and source ranks to a placement; return the new (row, source rank) of every sequence.

    Args:
        load_SLP: the token copies that every sequence routes to every node, or to every rank where replicas are none.
        size_S2: tokens and attention work of every sequence.
        cell_S: the (row, source rank) of every sequence to start from, as row * R + rank.
        price: the price of a copy at the busiest group, as in `GroupTraffic`.
        cluster: nodes and ranks.
        caps: what rows, nodes and ranks may hold.
        changes: what the search may change.
        seed: seed of the random proposals.

    Returns:
        Places whose objective is at most the one of `cell_S`.
    """
    num_groups = load_SLP.shape[2]
    shift = max(0, int(load_SLP.sum()).bit_length() - _COPIES_BITS)
    return _search_places(
        load_SLP >> shift,
        np.arange(num_groups) * cluster.num_nodes // num_groups,
        num_groups == cluster.num_nodes,
        price,
        size_S2,
        cell_S,
        (cluster.num_ranks, cluster.gpus_per_node),
        caps.rank_M2,
        caps.node_M,
        caps.row_2,
        (
            caps.group_copies if caps.group_copies == NO_LIMIT else caps.group_copies >> shift,
            cluster.num_nodes == 1 and cluster.redundant_slots > 0,
        ),
        changes.source_X,
        changes.kind_4,
        seed % (1 << 63),
        min(_PROPOSALS_PER_SEQUENCE * len(load_SLP), changes.max_work // max(1, load_SLP[0].size)),
    )


@compile_once
def _put(
    sequence_LP: NDArray[np.int64],
    sign: int,
    cell: int,
    node_P: NDArray[np.int64],
    groups_are_nodes: bool,
    ranks: tuple[int, int],
    sum_M3LP: NDArray[np.int64],
) -> None:
    """Add a sequence that starts in a cell to the sums of its row; with a `sign` of -1, take it away."""
    row, rank = divmod(cell, ranks[0])
    node = rank // ranks[1]
    num_layers, num_groups = sequence_LP.shape
    for layer in range(num_layers):
        copies = 0
        for group in range(num_groups):
            more = sign * sequence_LP[layer, group]
            copies += more
            sum_M3LP[row, 0, layer, group] += more
            if node_P[group] == node:
                sum_M3LP[row, 2, layer, group] += more
        if groups_are_nodes:
            sum_M3LP[row, 1, layer, node] += copies


@compile_once
def _cost(sum_3LP: NDArray[np.int64], price: int, limit: tuple[int, bool] = (NO_LIMIT, False)) -> int:
    """Return the objective of a row, in units of 2**-10 tokens.

    Each copy above `limit` is very expensive. `limit` is the most copies of a group, or of all groups together.
    """
    most_copies, is_of_all = limit
    _, num_layers, num_groups = sum_3LP.shape
    largest_sum, busiest_sum, excess = 0, 0, 0
    if most_copies < NO_LIMIT:
        copies = 0
        for group in range(num_groups):
            if not is_of_all:
                copies = 0
            for layer in range(num_layers):
                copies += sum_3LP[0, layer, group]
            excess = max(excess, copies - most_copies)
    for layer in range(num_layers):
        largest, busiest = 0, 0
        for group in range(num_groups):
            load = sum_3LP[0, layer, group]
            largest = max(largest, load)
            busiest = max(busiest, max(load, sum_3LP[1, layer, group]) - sum_3LP[2, layer, group])
        largest_sum += largest
        busiest_sum += busiest
    return (largest_sum << UNIT_BITS) + price * busiest_sum + (excess << _EXCESS_BITS)


@compile_once
def _has_room(
    cell: int,
    more_2: NDArray[np.int64],
    ranks: tuple[int, int],
    size_C2: NDArray[np.int64],
    tokens_MN: NDArray[np.int64],
    cap_M2: NDArray[np.int64],
    node_cap_M: NDArray[np.int64],
) -> bool:
    """Return whether a source rank and its node may hold so much more in a row."""
    row, rank = divmod(cell, ranks[0])
    for kind in range(2):
        if more_2[kind] > 0 and size_C2[cell, kind] + more_2[kind] > cap_M2[row, kind]:
            return False
    return bool(more_2[0] <= 0 or tokens_MN[row, rank // ranks[1]] + more_2[0] <= node_cap_M[row])


@compile_once
def _search_places(
    load_SLP: NDArray[np.int64],
    node_P: NDArray[np.int64],
    groups_are_nodes: bool,
    price: int,
    size_S2: NDArray[np.int64],
    start_S: NDArray[np.int64],
    ranks: tuple[int, int],
    cap_M2: NDArray[np.int64],
    node_cap_M: NDArray[np.int64],
    range_2: NDArray[np.int64],
    limit: tuple[int, bool],
    source_X: NDArray[np.int64],
    kind_4: NDArray[np.int64],
    seed: int,
    num_tries: int,
) -> NDArray[np.int64]:
    """Run the search. `ranks` has R and the ranks of a node.

    `sum_M3LP` has three sums for every row: copies for the experts of a group, copies that start on a node (0 where
    groups are ranks), and copies for the experts of a group that start on its node.
    """
    num_sequences, num_layers, num_groups = load_SLP.shape
    num_rows, (num_ranks, gpus_per_node) = len(cap_M2), ranks
    cell_S, best_S = start_S.copy(), start_S.copy()
    size_C2 = np.zeros((num_rows * num_ranks, 2), dtype=np.int64)
    tokens_MN = np.zeros((num_rows, num_ranks // gpus_per_node), dtype=np.int64)
    sum_M3LP = np.zeros((num_rows, 3, num_layers, num_groups), dtype=np.int64)
    for sequence in range(num_sequences):
        row, rank = divmod(cell_S[sequence], num_ranks)
        size_C2[cell_S[sequence]] += size_S2[sequence]
        tokens_MN[row, rank // gpus_per_node] += size_S2[sequence, 0]
        _put(load_SLP[sequence], 1, cell_S[sequence], node_P, groups_are_nodes, ranks, sum_M3LP)
    # The sequences of a row stand one after the other; rows keep their numbers of sequences.
    member_S = np.argsort(cell_S // num_ranks, kind="mergesort")
    place_S = np.empty(num_sequences, dtype=np.int64)
    place_S[member_S] = np.arange(num_sequences)
    first_M = np.searchsorted(cell_S[member_S] // num_ranks, np.arange(num_rows + 1))
    cost_M = np.empty(num_rows, dtype=np.int64)
    uneven = 0
    for row in range(num_rows):
        cost_M[row] = _cost(sum_M3LP[row], price, limit)
        uneven += _cost(sum_M3LP[row], price) - (int(sum_M3LP[row, 0].sum()) // num_groups << UNIT_BITS)
    first_threshold = uneven // num_sequences
    gain, best = 0, 0
    state = np.array([seed], dtype=np.uint64)
    for turn in range(num_tries):
        bits = next_random(state)
        one = np.int64((bits >> np.uint64(32)) * np.uint64(num_sequences) >> np.uint64(32))
        a = cell_S[one]
        row_a, rank_a = divmod(a, num_ranks)
        kind = kind_4[np.int64(bits & np.uint64(3))]
        first, span = np.int64(0), np.int64(num_sequences)
        if kind == MOVE:
            span = np.int64(len(source_X))
        elif kind == SWAP_IN_ROW:
            first, span = first_M[row_a], first_M[row_a + 1] - first_M[row_a]
        drawn = first + np.int64((bits & np.uint64(0xFFFFFFFC)) * np.uint64(span) >> np.uint64(32))
        other = one if kind == MOVE else member_S[drawn]
        b = row_a * num_ranks + source_X[drawn] if kind == MOVE else cell_S[other]
        row_b, rank_b = divmod(b, num_ranks)
        node_a, node_b = rank_a // gpus_per_node, rank_b // gpus_per_node
        if row_a == row_b and node_a == node_b:
            continue
        more_2 = -size_S2[one]
        if kind != MOVE:
            more_2 = more_2 + size_S2[other]
        if not _has_room(a, more_2, ranks, size_C2, tokens_MN, cap_M2, node_cap_M):
            continue
        if not _has_room(b, -more_2, ranks, size_C2, tokens_MN, cap_M2, node_cap_M):
            continue
        if row_a != row_b:
            tokens_a, tokens_b = tokens_MN[row_a].sum() + more_2[0], tokens_MN[row_b].sum() - more_2[0]
            if min(tokens_a, tokens_b) < range_2[0] or max(tokens_a, tokens_b) > range_2[1]:
                continue
        _put(load_SLP[one], -1, a, node_P, groups_are_nodes, ranks, sum_M3LP)
        _put(load_SLP[one], 1, b, node_P, groups_are_nodes, ranks, sum_M3LP)
        if kind != MOVE:
            _put(load_SLP[other], -1, b, node_P, groups_are_nodes, ranks, sum_M3LP)
            _put(load_SLP[other], 1, a, node_P, groups_are_nodes, ranks, sum_M3LP)
        cost_a = _cost(sum_M3LP[row_a], price, limit)
        cost_b = _cost(sum_M3LP[row_b], price, limit)
        change = cost_a - cost_M[row_a]
        if row_b != row_a:
            change += cost_b - cost_M[row_b]
        left = ((num_tries - turn) << 10) // num_tries
        if change > (first_threshold * left >> 10) * left >> 10:
            _put(load_SLP[one], -1, b, node_P, groups_are_nodes, ranks, sum_M3LP)
            _put(load_SLP[one], 1, a, node_P, groups_are_nodes, ranks, sum_M3LP)
            if kind != MOVE:
                _put(load_SLP[other], -1, a, node_P, groups_are_nodes, ranks, sum_M3LP)
                _put(load_SLP[other], 1, b, node_P, groups_are_nodes, ranks, sum_M3LP)
            continue
        cost_M[row_a], cost_M[row_b] = cost_a, cost_b
        size_C2[a] += more_2
        size_C2[b] -= more_2
        tokens_MN[row_a, node_a] += more_2[0]
        tokens_MN[row_b, node_b] -= more_2[0]
        cell_S[one] = b
        if kind != MOVE:
            cell_S[other] = a
            member_S[place_S[one]], member_S[place_S[other]] = other, one
            place_S[one], place_S[other] = place_S[other], place_S[one]
        gain -= change
        if gain > best:
            best = gain
            best_S[:] = cell_S
    return best_S
