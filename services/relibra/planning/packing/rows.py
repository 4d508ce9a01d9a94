"""Which sequences share a micro-batch: two searches that swap sequences between rows.

`even_rows` needs no placement. It makes the expert loads of all rows alike, in least squares, so that one placement
suits them all; `mix_loads` gives it few numbers per sequence to compare. `lower_floor` fits rows to a placement: it
lowers the load of the largest group of ranks, summed over cells; `group_loads` gives it the loads of each sequence.

Both searches accept changes below a falling threshold, as `swap_search.improve` does, keep to the caps, and return the
best assignment seen. Sequences that swap rows swap source ranks too.

S sequences, M rows, L layers, E experts, P groups of ranks, C (row, source rank) pairs, D mixed loads. An axis named 2
is (tokens, attention work); attention work is a sum of squared lengths.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once, next_random

_PROPOSALS_PER_SEQUENCE = 4000
MAX_WORK = 500_000_000
"""The most numbers a search compares: swaps tried, times the numbers compared for each."""

_NUM_MIXED = 1024
"""Mixed loads of a sequence, about."""
_SUM_BITS = 26
"""Bits of the largest sum over all sequences: sums of its squares then fit 62 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How many tokens and how much attention work rows may hold."""

    rank_M2: NDArray[np.int64]
    """The most tokens and attention work of a source rank in each row."""
    node_M: NDArray[np.int64]
    """The most tokens of all source ranks of a node in each row."""
    row_2: NDArray[np.int64]
    """The fewest and the most tokens of a row; this axis is (fewest, most)."""


def mix_loads(counts_SLE: NDArray[np.integer]) -> NDArray[np.int32]:
    """Sum up how each sequence's expert loads differ from the average in about 1000 numbers, int32 `[S, D]`.

    The experts of a layer are added to or subtracted from a few sums at random (count sketch; Charikar, Chen and
    Farach-Colton 2002). This roughly keeps lengths and angles, so rows with alike sums have alike loads. If there are
    few layers of few experts, every expert has a sum of its own.
    """
    num_layers, num_experts = counts_SLE.shape[1:]
    mixed_SD = _mix(counts_SLE, min(num_experts, max(1, _NUM_MIXED // num_layers)))
    copies_S = counts_SLE.sum(axis=(1, 2), dtype=np.int64)
    # Single float64 products and divisions are the same on every host.
    share_S = copies_S / max(int(copies_S.sum()), 1)
    apart_SD = mixed_SD - np.rint(share_S[:, None] * mixed_SD.sum(axis=0)).astype(np.int64)
    num_sequences, num_mixed = apart_SD.shape
    largest_sum = int(np.abs(apart_SD).max(initial=0)) * num_sequences
    bits = largest_sum.bit_length() + num_mixed.bit_length() // 2
    mixed: NDArray[np.int32] = (apart_SD >> max(0, bits - _SUM_BITS)).astype(np.int32)
    return mixed


def num_proposals(compared: NDArray[np.integer], max_work: int) -> int:
    """Return how many changes a search tries that compares these numbers of every sequence, `[S, ...]`."""
    return min(_PROPOSALS_PER_SEQUENCE * len(compared), max_work // int(compared[0].size))


@compile_once
def group_loads(counts_SLE: NDArray[np.integer], group_LE: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    """Return the token copies that every sequence routes to every group of ranks, int64 `[S, L, P]`."""
    num_sequences, num_layers, num_experts = counts_SLE.shape
    load_SLP = np.zeros((num_sequences, num_layers, num_groups), dtype=np.int64)
    for sequence in range(num_sequences):
        for layer in range(num_layers):
            for expert in range(num_experts):
                load_SLP[sequence, layer, group_LE[layer, expert]] += np.int64(counts_SLE[sequence, layer, expert])
    return load_SLP


@compile_once
def _mix(counts_SLE: NDArray[np.integer], per_layer: int) -> NDArray[np.int64]:
    num_sequences, num_layers, num_experts = counts_SLE.shape
    place_LE = np.empty((num_layers, num_experts), dtype=np.int64)
    sign_LE = np.ones((num_layers, num_experts), dtype=np.int64)
    state = np.uint64(1)
    for layer in range(num_layers):
        for expert in range(num_experts):
            # Knuth's linear congruential generator; its high bits are the random ones.
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            place_LE[layer, expert] = layer * per_layer + expert
            if per_layer < num_experts:
                place_LE[layer, expert] = layer * per_layer + np.int64((state >> np.uint64(33)) % np.uint64(per_layer))
                if state >> np.uint64(63):
                    sign_LE[layer, expert] = -1
    mixed_SD = np.zeros((num_sequences, num_layers * per_layer), dtype=np.int64)
    for sequence in range(num_sequences):
        for layer in range(num_layers):
            for expert in range(num_experts):
                count = np.int64(counts_SLE[sequence, layer, expert])
                mixed_SD[sequence, place_LE[layer, expert]] += sign_LE[layer, expert] * count
    return mixed_SD


@compile_once
def _draw_pair(state: NDArray[np.uint64], num_sequences: int) -> tuple[np.int64, np.int64]:
    bits = next_random(state)
    one = np.int64((bits >> np.uint64(32)) * np.uint64(num_sequences) >> np.uint64(32))
    other = np.int64((bits & np.uint64(0xFFFFFFFF)) * np.uint64(num_sequences) >> np.uint64(32))
    return one, other


@compile_once
def _sizes(size_S2: NDArray[np.int64], cell_S: NDArray[np.int64], num_cells: int) -> NDArray[np.int64]:
    size_C2 = np.zeros((num_cells, 2), dtype=np.int64)
    for sequence in range(len(cell_S)):
        size_C2[cell_S[sequence]] += size_S2[sequence]
    return size_C2


@compile_once
def _row_tokens(size_C2: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
    tokens_M = np.zeros(len(size_C2) // num_ranks, dtype=np.int64)
    for cell in range(len(size_C2)):
        tokens_M[cell // num_ranks] += size_C2[cell, 0]
    return tokens_M


@compile_once
def _may_swap(
    size_one_2: NDArray[np.int64],
    size_other_2: NDArray[np.int64],
    a: int,
    b: int,
    num_ranks: int,
    size_C2: NDArray[np.int64],
    tokens_M: NDArray[np.int64],
    cap_M2: NDArray[np.int64],
    range_2: NDArray[np.int64],
) -> bool:
    """Return whether a sequence of cell `a` and a sequence of cell `b` may change places."""
    row_a, row_b = a // num_ranks, b // num_ranks
    if row_a == row_b:
        return False
    for kind in range(2):
        more = size_other_2[kind] - size_one_2[kind]
        if size_C2[a, kind] + more > cap_M2[row_a, kind] or size_C2[b, kind] - more > cap_M2[row_b, kind]:
            return False
    more = size_other_2[0] - size_one_2[0]
    tokens_a, tokens_b = tokens_M[row_a] + more, tokens_M[row_b] - more
    return bool(min(tokens_a, tokens_b) >= range_2[0] and max(tokens_a, tokens_b) <= range_2[1])


@compile_once
def _swap(
    one: np.int64,
    other: np.int64,
    size_S2: NDArray[np.int64],
    cell_S: NDArray[np.int64],
    num_ranks: int,
    size_C2: NDArray[np.int64],
    tokens_M: NDArray[np.int64],
) -> None:
    a, b = cell_S[one], cell_S[other]
    for kind in range(2):
        more = size_S2[other, kind] - size_S2[one, kind]
        size_C2[a, kind] += more
        size_C2[b, kind] -= more
    tokens_M[a // num_ranks] += size_S2[other, 0] - size_S2[one, 0]
    tokens_M[b // num_ranks] -= size_S2[other, 0] - size_S2[one, 0]
    cell_S[one], cell_S[other] = b, a


@compile_once
def even_rows(
    mixed_SD: NDArray[np.int32],
    size_S2: NDArray[np.int64],
    start_S: NDArray[np.int64],
    num_ranks: int,
    cap_M2: NDArray[np.int64],
    range_2: NDArray[np.int64],
    seed: int,
    num_proposals: int,
) -> NDArray[np.int64]:
    """Make the expert loads of all rows alike; return the (row, source rank) of every sequence.

    Args:
        mixed_SD: the loads of every sequence, as `mix_loads` returns them.
        size_S2: tokens and attention work of every sequence.
        start_S: the (row, source rank) of every sequence to start from, as row * R + rank.
        num_ranks: R.
        cap_M2: `Caps.rank_M2`.
        range_2: `Caps.row_2`.
        seed: seed of the random proposals, 63 bits.
        num_proposals: how many changes to try.
    """
    num_sequences, num_mixed = mixed_SD.shape
    cell_S, best_S = start_S.copy(), start_S.copy()
    size_C2 = _sizes(size_S2, cell_S, len(cap_M2) * num_ranks)
    tokens_M = _row_tokens(size_C2, num_ranks)
    sum_MD = np.zeros((len(cap_M2), num_mixed), dtype=np.int64)
    squares = np.int64(0)
    for sequence in range(num_sequences):
        for index in range(num_mixed):
            number = np.int64(mixed_SD[sequence, index])
            sum_MD[cell_S[sequence] // num_ranks, index] += number
            squares += number * number
    cost, best = np.int64(0), np.int64(0)
    state = np.array([seed], dtype=np.uint64)
    for proposal in range(num_proposals):
        one, other = _draw_pair(state, num_sequences)
        a, b = cell_S[one], cell_S[other]
        if not _may_swap(size_S2[one], size_S2[other], a, b, num_ranks, size_C2, tokens_M, cap_M2, range_2):
            continue
        one_D, other_D = mixed_SD[one], mixed_SD[other]
        sum_a_D, sum_b_D = sum_MD[a // num_ranks], sum_MD[b // num_ranks]
        change = np.int64(0)
        for index in range(num_mixed):
            more = np.int64(other_D[index]) - np.int64(one_D[index])
            change += more * (more + sum_a_D[index] - sum_b_D[index])
        left = ((num_proposals - proposal) << 5) // num_proposals
        if change > (squares // num_sequences * left * left) >> 10:
            continue
        for index in range(num_mixed):
            more = np.int64(other_D[index]) - np.int64(one_D[index])
            sum_a_D[index] += more
            sum_b_D[index] -= more
        _swap(one, other, size_S2, cell_S, num_ranks, size_C2, tokens_M)
        cost += change
        if cost < best:
            best = cost
            best_S[:] = cell_S
    return best_S


@compile_once
def lower_floor(
    load_SLP: NDArray[np.int64],
    size_S2: NDArray[np.int64],
    start_S: NDArray[np.int64],
    num_ranks: int,
    cap_M2: NDArray[np.int64],
    range_2: NDArray[np.int64],
    seed: int,
    num_proposals: int,
) -> NDArray[np.int64]:
    """Fit rows to a placement, by the loads of `group_loads`; the rest is as in `even_rows`."""
    num_sequences, num_layers, num_groups = load_SLP.shape
    cell_S, best_S = start_S.copy(), start_S.copy()
    size_C2 = _sizes(size_S2, cell_S, len(cap_M2) * num_ranks)
    tokens_M = _row_tokens(size_C2, num_ranks)
    load_MLP = np.zeros((len(cap_M2), num_layers, num_groups), dtype=np.int64)
    for sequence in range(num_sequences):
        load_MLP[cell_S[sequence] // num_ranks] += load_SLP[sequence]
    largest_ML = np.empty((len(cap_M2), num_layers), dtype=np.int64)
    excess = 0
    for row in range(len(cap_M2)):
        for layer in range(num_layers):
            largest_ML[row, layer] = load_MLP[row, layer].max()
            excess += largest_ML[row, layer] - load_MLP[row, layer].sum() // num_groups
    cost, best = 0, 0
    state = np.array([seed], dtype=np.uint64)
    for proposal in range(num_proposals):
        one, other = _draw_pair(state, num_sequences)
        a, b = cell_S[one], cell_S[other]
        if not _may_swap(size_S2[one], size_S2[other], a, b, num_ranks, size_C2, tokens_M, cap_M2, range_2):
            continue
        row_a, row_b = a // num_ranks, b // num_ranks
        change = 0
        for layer in range(num_layers):
            largest_a, largest_b = 0, 0
            for group in range(num_groups):
                more = load_SLP[other, layer, group] - load_SLP[one, layer, group]
                largest_a = max(largest_a, load_MLP[row_a, layer, group] + more)
                largest_b = max(largest_b, load_MLP[row_b, layer, group] - more)
            change += largest_a + largest_b - largest_ML[row_a, layer] - largest_ML[row_b, layer]
        left = num_proposals - proposal
        if change > excess // num_sequences * left // num_proposals * left // num_proposals:
            continue
        load_MLP[row_a] += load_SLP[other] - load_SLP[one]
        load_MLP[row_b] -= load_SLP[other] - load_SLP[one]
        for layer in range(num_layers):
            largest_ML[row_a, layer] = load_MLP[row_a, layer].max()
            largest_ML[row_b, layer] = load_MLP[row_b, layer].max()
        _swap(one, other, size_S2, cell_S, num_ranks, size_C2, tokens_M)
        cost += change
        if cost < best:
            best = cost
            best_S[:] = cell_S
    return best_S
