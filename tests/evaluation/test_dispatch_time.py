from dataclasses import replace

import numpy as np
import pytest

from harness.small_training import CLUSTER, CONSTANTS, EVEN, HOME_LE, MODEL, TRAINING
from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.dispatch_time import copies_of, dispatch_us_ML, even_copies, share_of_tokens
from relibra.planning import Cluster, StepLoad
from relibra.routing import read_trace

_ONE_NODE = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1)


def _us(load, cluster=CLUSTER, once_to=None):
    copies_MLNR = copies_of(at_home(load.load_MLE, HOME_LE), load, cluster)
    return dispatch_us_ML(copies_MLNR, TRAINING.token_size_bytes, CONSTANTS, cluster, once_to).item()


def test_dispatch_waits_for_the_slowest_adapter():
    # Each expert gets 40 tokens: 20 from its own node and 20 from the other node.
    assert _us(EVEN) == 20 * 400 / 40
    assert _us(EVEN, _ONE_NODE) == 40 * 0.75 * 400 / 400


def test_tokens_that_stay_on_their_node_do_not_use_the_network():
    source_load_MLRE = np.zeros((1, 1, 4, 4), dtype=np.int64)
    source_load_MLRE[0, 0, :2, :2] = source_load_MLRE[0, 0, 2:, 2:] = 20
    assert _us(StepLoad.of_sources(source_load_MLRE)) == 40 / 2 * 400 / 400


def test_a_token_that_wants_two_experts_of_a_node_goes_there_once():
    # A token wants two of four experts and misses both experts of a node in 1/2 x 1/3 of all cases. Each node sends
    # 40 tokens over two adapters.
    assert _us(EVEN, once_to=MODEL) == pytest.approx(40 * (1 - 1 / 6) / 2 * 400 / 40)


def test_dispatch_inside_a_node_waits_for_the_most_crowded_rank():
    hot = StepLoad.of_sources(np.array([[[[19, 7, 7, 7]]]]).repeat(4, axis=2))
    alone = 80 * share_of_tokens(np.array(19 / 40), MODEL).item()
    assert _us(hot, _ONE_NODE, once_to=MODEL) == pytest.approx(alone * 0.75 * 400 / 400)


def test_a_crowded_node_is_less_of_a_bottleneck_than_its_copies():
    hot = StepLoad.of_sources(np.array([[[[16, 14, 5, 5]]]]).repeat(4, axis=2))
    assert _us(hot) / _us(EVEN) == pytest.approx(1.6)
    assert _us(hot, once_to=MODEL) / _us(EVEN, once_to=MODEL) == pytest.approx(1.2)  # all tokens instead of 5 in 6


def test_a_share_of_nothing_reaches_no_token_and_of_everything_every_token():
    np.testing.assert_allclose(share_of_tokens(np.array([0.0, 0.25, 0.5, 1.0]), MODEL), [0, 0.5, 5 / 6, 1])


@pytest.mark.parametrize("once_to", [None, MODEL])
def test_even_copies_are_those_of_an_even_load(once_to):
    np.testing.assert_allclose(even_copies(EVEN, CLUSTER), copies_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, CLUSTER))


@pytest.mark.traces
@pytest.mark.parametrize(("name", "num_nodes"), [("gpt-oss-20b_mmlu", 2), ("deepseek-v2-lite_esft", 8)])
def test_real_tokens_reach_about_as_many_nodes(traces_dir, name, num_nodes):
    trace = read_trace(traces_dir / f"{name}.npz")
    model = replace(MODEL, num_experts=trace.num_experts, top_k=trace.top_k)
    node_TLK = trace.routed_experts.astype(int) * num_nodes // trace.num_experts
    for node in range(num_nodes):
        is_there_TLK = node_TLK == node
        predicted_L = share_of_tokens(is_there_TLK.mean(axis=(0, 2)), model)
        assert predicted_L.mean() == pytest.approx(is_there_TLK.any(axis=-1).mean(), rel=0.12)


def test_the_tokens_that_cross_to_a_replica_are_those_that_were_picked():
    # Expert 0 lives on rank 0 and has 20 tokens of its own node and 20 of the other one. Rank 1 computes half of them.
    index_Q4 = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]], dtype=np.int32)
    tokens_Q = np.array([20, 20, 40, 40, 40])
    halves = Assignment(home_LE=HOME_LE, index_Q4=index_Q4, tokens_Q=tokens_Q, num_rows=1)
    picked = replace(halves, crossing_Q=np.array([0, 15, 0, 0, 0]))
    np.testing.assert_array_equal(copies_of(halves, EVEN, CLUSTER)[0, 0, :, :2], [[10, 30], [10, 30]])
    np.testing.assert_array_equal(copies_of(picked, EVEN, CLUSTER)[0, 0, :, :2], [[15, 25], [5, 35]])
