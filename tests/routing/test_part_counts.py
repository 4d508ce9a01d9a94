"""Counts of parts against the rows of `row_table`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine_payloads import routes
from harness.row_table import row_table
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, as_trained
from relibra.routing.filler import Filler, FillerRule, filler_counts, filler_rows
from relibra.routing.part_counts import count_parts
from relibra.routing.row_ranges import row_ranges
from relibra.routing.sequence_routing import SequenceRouting
from relibra.routing.token_layout import ParallelLayout, TokenPacking

LAYERS = ModelLayers(num_experts=12, top_k=2, is_moe=(False, True, True, False, True))
KNOWN = (Filler.EXPERT_ZERO, Filler.FIRST_EXPERTS, Filler.ROUND_ROBIN)
LAYOUTS = [
    ParallelLayout(data=2, expert=2),
    ParallelLayout(data=2, context=2, tensor=2, expert=4),
    ParallelLayout(data=2, context=4, tensor=2, expert=4, expert_tensor=2),
    ParallelLayout(data=2, context=2, tensor=4, expert=16, zigzag=False),
]


def routing_of(seed: int, num_tokens: int, lost: list[int], *, has_last: bool, dtype: str) -> SequenceRouting:
    position_T = np.setdiff1d(np.arange(num_tokens - (not has_last)), [each for each in lost if each < num_tokens - 1])
    routed_TLK = routes(seed, num_tokens, LAYERS).astype(dtype)[position_T]
    return SequenceRouting(layers=LAYERS, routed_TLK=routed_TLK, position_T=position_T, num_tokens=num_tokens)


@settings(max_examples=150, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    packing=st.sampled_from(["verl", "slime", "padded", "filled"]),
    rule=st.builds(
        FillerRule,
        last_token=st.sampled_from(Filler),
        missing=st.sampled_from(Filler),
        padding=st.sampled_from(Filler),
    ),
    filled_to=st.none() | st.integers(1, 4),
    sequences=st.lists(
        st.tuples(st.integers(1, 90), st.lists(st.integers(0, 80), max_size=6), st.booleans()), min_size=1, max_size=6
    ),
    dtype=st.sampled_from(["uint8", "int16", "int32", "int64"]),
    data_rank=st.integers(0, 1),
)
def test_counts_are_those_of_the_rows(layout, packing, rule, filled_to, sequences, dtype, data_rank):
    packings = {
        "verl": TokenPacking.verl,
        "slime": lambda each: TokenPacking.slime(each, 4),
        "padded": TokenPacking.padded,
        "filled": lambda each: replace(TokenPacking.verl(each), pack_multiple=6 * each.context * each.tensor),
    }
    packing = packings[packing](layout)
    routings = [
        routing_of(seed, num_tokens, lost, has_last=has_last, dtype=dtype)
        for seed, (num_tokens, lost, has_last) in enumerate(sequences)
    ]
    length_S = np.array([each.num_tokens for each in routings])
    micro_batches = [[list(range(len(routings)))] if rank == data_rank else [[]] for rank in range(2)]
    trained = [as_trained(each, rule) for each in routings]
    if filled_to is not None:  # more than the sequences need, packed or not
        filled_to = (filled_to + int(length_S.sum())) * 2 * layout.context * layout.tensor
    rows_of = [dict(zip(routing.position_T.tolist(), routing.narrow(), strict=True)) for routing in trained]
    laid = row_table(micro_batches, length_S, layout, packing, filled_to)
    expected = {}
    columns = (laid.ep_group_N, laid.source_rank_N, laid.sequence_N, laid.position_N)
    for group, source, sequence, position in zip(*(column.tolist() for column in columns), strict=True):
        if sequence >= 0:
            row_LK = rows_of[sequence].get(position)
        elif rule.padding is not Filler.NATIVE:
            (row_LK,) = filler_rows(rule.padding, np.array([position]), LAYERS)
        else:
            row_LK = None
        if row_LK is not None:
            counts_LE, so_far = expected.get((group, source), (np.zeros((3, LAYERS.num_experts), np.int64), 0))
            np.add.at(counts_LE, (np.arange(3)[:, None], row_LK), 1)
            expected[group, source] = counts_LE, so_far + 1
    parts = count_parts(routings, row_ranges(length_S, layout, packing, data_rank, filled_to), rule)
    assert {part: each.num_rows for part, each in parts.items()} == {part: n for part, (_, n) in expected.items()}
    assert list(parts) == sorted(parts)
    for part, each in parts.items():
        np.testing.assert_array_equal(each.counts_LE, expected[part][0])


@given(st.sampled_from(KNOWN), st.integers(0, 40), st.integers(0, 40), st.integers(2, 30), st.integers(1, 2))
def test_counts_of_fillers_are_those_of_their_rows(filler, first, num_rows, num_experts, top_k):
    layers = replace(LAYERS, num_experts=num_experts, top_k=top_k)
    rows_PLK = filler_rows(filler, np.arange(first, first + num_rows), layers)
    expected_LE = np.stack([np.bincount(rows_PLK[:, layer].ravel(), minlength=num_experts) for layer in range(3)])
    np.testing.assert_array_equal(filler_counts(filler, first, first + num_rows, layers), expected_LE)


def test_ids_that_are_no_experts_and_gaps_that_a_framework_refuses_are_errors():
    layout = LAYOUTS[0]
    ranges = row_ranges(np.array([5]), layout, TokenPacking.verl(layout), 0)
    rule = FillerRule(last_token=Filler.NATIVE, missing=None, padding=Filler.NATIVE)
    whole = routing_of(0, 5, [], has_last=True, dtype="int32")
    with pytest.raises(InvalidInput, match="expected expert ids 0 to 11, got 12"):
        count_parts([replace(whole, routed_TLK=np.full_like(whole.routed_TLK, 12))], ranges, rule)
    with pytest.raises(InvalidInput, match="no row for 1 tokens, the first is 2"):
        count_parts([routing_of(0, 5, [2], has_last=True, dtype="int32")], ranges, rule)
