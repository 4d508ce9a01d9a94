"""What every sequence brings to a row, in the two forms in which packing compares sequences.

S sequences, L layers, E experts, P groups of ranks, D mixed loads.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled

_NUM_MIXED = 1024
_SUM_BITS = 26
"""Of the largest sum over all sequences, so that sums of its squares fit 62 bits."""


def group_loads(counts_SLE: NDArray[np.integer], group_LE: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    """Token copies that every sequence has for every group of a placement, int64 `[S, L, P]`."""
    return _group_loads(counts_SLE, group_LE, num_groups)


def mix_loads(counts_SLE: NDArray[np.integer]) -> NDArray[np.int32]:
    """Mix how each sequence's expert loads differ from the average into some 1000 numbers, int32 `[S, D]`.

    Experts of a layer are added or subtracted at random into a few sums (count sketch, Charikar, Chen and Farach-Colton
    2002), which about keeps lengths and angles: rows alike in these sums are alike in their loads. Few layers of few
    experts are not mixed.
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


@compiled
def _group_loads(counts_SLE: NDArray[np.integer], group_LE: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    num_sequences, num_layers, num_experts = counts_SLE.shape
    load_SLP = np.zeros((num_sequences, num_layers, num_groups), dtype=np.int64)
    for sequence in range(num_sequences):
        for layer in range(num_layers):
            for expert in range(num_experts):
                load_SLP[sequence, layer, group_LE[layer, expert]] += np.int64(counts_SLE[sequence, layer, expert])
    return load_SLP


@compiled
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
