"""Schedules that balance lengths and ignore experts, as RL frameworks make them today.

They are made by Karmarkar and Karp's largest differencing method (1982), as in verl: sequences are split into
micro-batches of about equal tokens, then the sequences of each micro-batch over its source ranks. Packing starts from
such a schedule and may not give up much of its balance.

S sequences, M rows, R EP ranks, C (row, source rank) pairs, X pairs with room.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster
from relibra.planning.schedule import Schedule

_Part = tuple[int, list[int]]
"""The tokens of a part, and its sequences."""


def length_balanced(
    length_S: NDArray[np.integer],
    num_micro_batches: int,
    cluster: Cluster,
    token_budget: int,
    last_resort: Schedule | None = None,
) -> Schedule:
    """Schedule sequences by length alone; no source rank gets more than `token_budget` tokens in a micro-batch.

    Finding out whether all sequences fit is bin packing, which is hard.

    Args:
        length_S: tokens of every sequence.
        num_micro_batches: micro-batches of every EP group.
        cluster: the EP groups.
        token_budget: the most tokens of a source rank in a micro-batch.
        last_resort: a schedule that is known to fit; returned if no other is found.

    Raises:
        InvalidInput: a sequence is longer than the budget, not all sequences fit, or there are no micro-batches.
    """
    if num_micro_batches < 1:
        raise InvalidInput.of("micro_batches", expected="at least 1", got=num_micro_batches)
    if len(length_S) and length_S.max() > token_budget:
        longest = int(np.argmax(length_S))
        raise InvalidInput.of(
            "token_budget", expected=f"at least the {length_S[longest]} tokens of sequence {longest}", got=token_budget
        )
    num_rows = num_micro_batches * cluster.num_ep_groups
    # The last micro-batch is filled first, because a schedule has it only if it has a sequence.
    row_M = np.argsort(-(np.arange(num_rows) % num_micro_batches), kind="stable")
    cell_C = (row_M[:, None] * cluster.num_ranks + np.arange(cluster.num_ranks)).ravel()
    cell_S = _split_twice(length_S, row_M, cluster)
    for by_fullest in (False, True):
        if np.bincount(cell_S, weights=length_S).max() <= token_budget:
            return schedule_of(cell_S, num_micro_batches, cluster)
        place_S = _fill_cells(length_S, len(cell_C), token_budget, by_fullest)
        homeless_S = np.flatnonzero(place_S < 0)
        cell_S = cell_C[place_S]
    if len(homeless_S) and last_resort:
        return last_resort
    if len(homeless_S):
        raise InvalidInput.of(
            "token_budget",
            expected=f"room for {int(length_S.sum())} tokens on {cluster.num_ranks} ranks in {num_rows} micro-batches",
            got=f"{token_budget}, and {len(homeless_S)} sequences do not fit: raise it, or plan more micro-batches",
        )
    return schedule_of(cell_S, num_micro_batches, cluster)


def schedule_of(cell_S: NDArray[np.integer], num_micro_batches: int, cluster: Cluster) -> Schedule:
    """Return the schedule that puts every sequence on the rank `cell % R` of the row `cell // R`."""
    row_S, rank_S = np.divmod(cell_S, cluster.num_ranks)
    group_S, micro_batch_S = np.divmod(row_S, num_micro_batches)
    return Schedule(micro_batch_S=micro_batch_S, source_rank_S=rank_S, ep_group_S=group_S)


def _split_twice(length_S: NDArray[np.integer], row_M: NDArray[np.intp], cluster: Cluster) -> NDArray[np.int64]:
    """Split sequences over rows, and those of every row over ranks; nodes take turns in getting the next part."""
    cell_S = np.zeros(len(length_S), dtype=np.int64)
    items = [(int(length), sequence) for sequence, length in enumerate(length_S)]
    for row, (_, members) in zip(row_M, _split(items, len(row_M)), strict=False):
        parts = _split([items[member] for member in members], cluster.num_ranks)
        for place, (_, sequences) in enumerate(parts):
            gpu, node = divmod(place, cluster.num_nodes)
            cell_S[sequences] = row * cluster.num_ranks + node * cluster.gpus_per_node + gpu
    return cell_S


def _split(items: list[tuple[int, int]], num_parts: int) -> list[_Part]:
    """Split (tokens, sequence) pairs into at most `num_parts` parts by largest differencing, heaviest part first.

    Partial splits are merged, the two most uneven ones first; the heaviest parts of one join the lightest parts of the
    other. Empty parts are left out.
    """
    heap = [(-tokens, order, [(tokens, [sequence])]) for order, (tokens, sequence) in enumerate(items)]
    if num_parts == 1:
        return [(sum(tokens for tokens, _ in items), [sequence for _, sequence in items])] if items else []
    heapq.heapify(heap)
    next_order = len(heap)
    while len(heap) > 1:
        _, _, one = heapq.heappop(heap)
        _, _, other = heapq.heappop(heap)
        num_shared = max(0, len(one) + len(other) - num_parts)
        merged = one[: len(one) - num_shared] + other[: len(other) - num_shared]
        for heavy, light in zip(one[len(one) - num_shared :], reversed(other[len(other) - num_shared :]), strict=True):
            merged.append((heavy[0] + light[0], heavy[1] + light[1]))
        merged.sort(key=lambda part: (-part[0], -len(part[1]), part[1]))
        lightest = merged[-1][0] if len(merged) == num_parts else 0
        heapq.heappush(heap, (lightest - merged[0][0], next_order, merged))
        next_order += 1
    return heap[0][2] if heap else []


def _fill_cells(
    length_S: NDArray[np.integer], num_cells: int, token_budget: int, by_fullest: bool
) -> NDArray[np.int64]:
    """Put every sequence, longest first, on a (row, rank) where it fits; return -1 for sequences that fit nowhere.

    The least loaded one is taken, which balances, or with `by_fullest` the most loaded one, which wastes less room.
    """
    cell_S = np.full(len(length_S), -1, dtype=np.int64)
    tokens_C = np.zeros(num_cells, dtype=np.int64)
    for sequence in np.argsort(-length_S.astype(np.int64), kind="stable"):
        open_X = np.flatnonzero(tokens_C + length_S[sequence] <= token_budget)
        if len(open_X):
            chosen = open_X[np.argmax(tokens_C[open_X]) if by_fullest else np.argmin(tokens_C[open_X])]
            cell_S[sequence] = chosen
            tokens_C[chosen] += length_S[sequence]
    return cell_S
