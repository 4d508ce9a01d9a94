import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, HYBRID, count, routes
from relibra.errors import InvalidInput
from relibra.planning import Cluster, StepLoad
from relibra.routing import FILLER_RULES, as_trained, count_sequences, decode
from relibra.routing.filler import Filler
from relibra.routing.micro_batches import scheduled_trace
from relibra.routing.token_layout import ParallelLayout, TokenPacking, lay_out

LENGTHS = np.array([9, 4, 17, 6, 12, 3, 8, 5])
LAYOUT = ParallelLayout(data=2, context=2, tensor=2, expert=4)


def _routings(layers):
    return [decode(routes(seed, length - 1, layers).astype(np.uint8), layers) for seed, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("layers", [ALL_MOE, HYBRID])
@pytest.mark.parametrize("framework", ["verl", "slime", "padded"])
def test_every_row_is_counted_once_in_its_micro_batch(layers, framework):
    micro_batches = [[[0, 3], [1, 2]], [[7], [6, 5, 4]]]
    packing = getattr(TokenPacking, framework)(LAYOUT)
    routings = _routings(layers)
    trace = scheduled_trace(routings, lay_out(micro_batches, LENGTHS, LAYOUT, packing))
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0, num_ep_groups=2)
    load_MLE = StepLoad.of(count_sequences(trace), trace.schedule, cluster).load_MLE
    for row, sequences in enumerate([[0, 3], [1, 2], [7], [6, 5, 4]]):
        expected_LE = sum(count(routings[each].routed_TLK, layers) for each in sequences)
        np.testing.assert_array_equal(load_MLE[row], expected_LE)


def test_source_ranks_of_a_row_are_those_of_the_layout():
    layers = ALL_MOE
    layout = ParallelLayout(data=1, context=2, expert=2)
    routing = decode(routes(0, 7, layers).astype(np.uint8), layers)
    trace = scheduled_trace([routing], lay_out([[[0]]], np.array([8]), layout, TokenPacking.verl(layout)))
    np.testing.assert_array_equal(trace.source_rank, [0, 1])
    front_and_back = routing.routed_TLK[[0, 1, 6]]  # the last token, 7, has no row
    np.testing.assert_array_equal(trace.routed_experts[:3], front_and_back)
    np.testing.assert_array_equal(trace.routed_experts[3:], routing.routed_TLK[2:6])


def test_fillers_of_slime_are_load_of_the_ranks_that_have_them():
    layout = ParallelLayout(data=1, tensor=2, expert=2)
    packing = TokenPacking.slime(layout, pad_multiplier=4)
    routing = as_trained(decode(routes(0, 4, ALL_MOE).astype(np.uint8), ALL_MOE), FILLER_RULES["slime"])
    trace = scheduled_trace([routing], lay_out([[[0]]], np.array([5]), layout, packing), Filler.ROUND_ROBIN)
    # 8 rows: 4 known, the last token, 3 of padding, cut in two.
    np.testing.assert_array_equal(trace.source_rank, [0, 1, 1])
    ids_per_row = ALL_MOE.num_layers * ALL_MOE.top_k
    fillers = (np.arange(3 * ids_per_row) % 8).reshape(3, 3, 2)
    np.testing.assert_array_equal(trace.routed_experts, [*routing.routed_TLK[:4], *fillers, fillers[0]])


def test_a_sequence_that_is_longer_than_laid_out_is_refused():
    layout = ParallelLayout(data=1, expert=1)
    laid = lay_out([[[0]]], np.array([3]), layout, TokenPacking.verl(layout))
    with pytest.raises(InvalidInput, match=r"routings\[0\]: expected rows of its 3 tokens"):
        scheduled_trace([decode(routes(0, 4, ALL_MOE).astype(np.uint8), ALL_MOE)], laid)
    with pytest.raises(InvalidInput, match="routings: expected at least one sequence"):
        scheduled_trace([], laid)
