import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.workload import drawn, tile
from relibra.planning import Cluster
from relibra.routing import RoutingTrace

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)


@pytest.fixture
def trace():
    # Domain a routes to even experts and b to odd ones.
    rng = np.random.default_rng(0)
    parity_S = np.arange(40) % 2
    routed = (rng.integers(0, 4, (40, 25, 2, 1)) * 2 + parity_S[:, None, None, None]).reshape(1000, 2, 1)
    return RoutingTrace(
        routed_experts=routed.astype(np.uint8),
        offsets=np.arange(0, 1001, 25),
        num_experts=8,
        domain=np.array(["a", "b"])[parity_S],
    )


def test_tiles_fill_every_rank_of_every_micro_batch(trace):
    workload = tile(trace, _CLUSTER, 4, tokens_per_rank=260, seed=0)
    assert workload.length_S.tolist() == [250] * 16
    tokens_MR = np.zeros((4, 4))
    np.add.at(tokens_MR, (workload.schedule.row_S, workload.schedule.source_rank_S), workload.length_S)
    assert (tokens_MR == 250).all()
    np.testing.assert_array_equal(workload.counts_SLE.sum(axis=-1), workload.length_S[:, None].repeat(2, axis=1))


def test_the_sequences_of_a_tile_come_from_one_domain(trace):
    workload = tile(trace, _CLUSTER, 4, tokens_per_rank=260, seed=0)
    by_parity_SP = workload.counts_SLE.reshape(16, 2, 4, 2).sum(axis=(1, 2))
    assert (by_parity_SP.min(axis=1) == 0).all()
    assert (by_parity_SP.sum(axis=0) > 0).all()


def test_a_sequence_longer_than_the_budget_is_taken_alone(trace):
    assert tile(trace, _CLUSTER, 1, tokens_per_rank=10, seed=0).length_S.tolist() == [25] * 4


def test_sequences_without_tokens_are_passed_over(trace):
    # Domain b has an empty sequence only: a step that began with it would never be full.
    offsets = np.array([0, 0, *trace.offsets[1:21]])
    with_empty = RoutingTrace(
        routed_experts=trace.routed_experts[:500],
        offsets=offsets,
        num_experts=8,
        domain=np.array(["b"] + ["a"] * 20),
    )
    assert tile(with_empty, _CLUSTER, 4, tokens_per_rank=260, seed=0).length_S.tolist() == [250] * 16
    empty = RoutingTrace(routed_experts=trace.routed_experts[:0], offsets=np.zeros(3, dtype=np.int64), num_experts=8)
    with pytest.raises(InvalidInput, match="trace: expected a sequence with recorded tokens"):
        tile(empty, _CLUSTER, 4, tokens_per_rank=260, seed=0)


def test_drawn_steps_have_the_size_asked_for_and_differ():
    statistics = RoutingStatistics(popularity_variance=0.5, domain_variance=0.1, sequence_variance=0.3)
    model = MODELS["gpt-oss-20b"]
    first, second = (drawn(statistics, model, _CLUSTER, 3, 512, seed=0, step=step) for step in (0, 1))
    tokens_MR = np.zeros((3, 4))
    np.add.at(tokens_MR, (first.schedule.row_S, first.schedule.source_rank_S), first.length_S)
    np.testing.assert_allclose(tokens_MR, 512, atol=2)
    assert first.load.load_MLE.shape == (3, 24, 32)
    assert not np.array_equal(first.counts_SLE, second.counts_SLE)
