from dataclasses import replace

import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation import load_of, model_of, pack_trace, schedule_of
from relibra.planning import Cluster, check_plan
from relibra.planning.solve import solve
from relibra.routing import RoutingTrace, count_sequences

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)


@pytest.fixture
def trace():
    rng = np.random.default_rng(0)
    return RoutingTrace(
        routed_experts=np.minimum(rng.geometric(0.3, (400, 2, 2)) - 1, 7).astype(np.uint8),
        offsets=np.arange(0, 401, 20),
        num_experts=8,
    )


def _fixed(trace, num_micro_batches):
    index_S = np.arange(trace.num_sequences, dtype=np.int32)
    return replace(trace, micro_batch=index_S % np.int32(num_micro_batches), source_rank=index_S % np.int32(4))


def test_a_trace_without_a_schedule_is_dealt_out(trace):
    assert schedule_of(trace, _CLUSTER).num_micro_batches == 16
    assert schedule_of(trace, _CLUSTER, 5).num_micro_batches == 5
    short = replace(trace, routed_experts=trace.routed_experts[:60], offsets=trace.offsets[:4])
    assert schedule_of(short, _CLUSTER).num_micro_batches == 3


def test_a_fixed_schedule_is_kept(trace):
    fixed = _fixed(trace, 3)
    plan = solve(load_of(fixed, fixed.schedule, _CLUSTER), schedule_of(fixed, _CLUSTER), model_of(fixed), _CLUSTER)
    np.testing.assert_array_equal(plan.schedule.micro_batch_S, fixed.micro_batch)
    np.testing.assert_array_equal(plan.schedule.source_rank_S, fixed.source_rank)


def test_S2_the_plan_of_a_trace_is_valid(trace):
    schedule = schedule_of(trace, _CLUSTER, 4)
    load = load_of(trace, schedule, _CLUSTER)
    plan = solve(load, schedule, model_of(trace), _CLUSTER)
    check_plan(plan, load.load_MLE)
    assert load.load_MLE.sum() == trace.routed_experts.size


def test_micro_batches_of_a_fixed_schedule_cannot_be_chosen(trace):
    with pytest.raises(InvalidInput, match="micro_batches: expected none, as the trace fixes a schedule of 3, got 4"):
        schedule_of(_fixed(trace, 3), _CLUSTER, 4)


@pytest.mark.parametrize("num_micro_batches", [0, 21])
def test_impossible_micro_batches_are_refused(trace, num_micro_batches):
    with pytest.raises(InvalidInput, match="micro_batches: expected 1 to the 20 sequences"):
        schedule_of(trace, _CLUSTER, num_micro_batches)


def test_a_fixed_schedule_of_a_larger_cluster_is_refused(trace):
    small = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0)
    with pytest.raises(InvalidInput, match=r"schedule.source_rank\[2\]: expected 0 to 1, got 2"):
        schedule_of(_fixed(trace, 3), small)


def test_packing_keeps_micro_batches_and_budget_of_a_fixed_schedule(trace):
    fixed = _fixed(trace, 3)
    packing, token_budget, _ = pack_trace(fixed, count_sequences(fixed), model_of(fixed), _CLUSTER)
    assert packing.schedule.num_micro_batches == 3
    assert token_budget == 40
    assert (packing.schedule.micro_batch_S != fixed.micro_batch).any()


def test_packing_takes_other_micro_batches_and_another_budget(trace):
    fixed = _fixed(trace, 3)
    packing, token_budget, _ = pack_trace(fixed, count_sequences(fixed), model_of(fixed), _CLUSTER, None, 2, 60)
    assert packing.schedule.num_micro_batches == 2
    assert token_budget == 60
    with pytest.raises(InvalidInput, match="token_budget: expected room for 400 tokens on 4 ranks in 1 micro-batches"):
        pack_trace(fixed, count_sequences(fixed), model_of(fixed), _CLUSTER, num_micro_batches=1)


def test_impossible_micro_batches_are_refused_for_packing_too(trace):
    with pytest.raises(InvalidInput, match="micro_batches: expected 1 to the 20 sequences"):
        pack_trace(_fixed(trace, 3), count_sequences(trace), model_of(trace), _CLUSTER, num_micro_batches=21)


def test_sizes_of_experts_are_those_given_and_state_is_bf16_with_adam_by_default(trace):
    assert model_of(trace).expert_state_size_bytes == 0
    assert model_of(trace, 200).expert_weight_size_bytes == 200
    assert model_of(trace, 200).expert_state_size_bytes == 100 * (2 + 4 + 4 + 4)
    assert model_of(trace, 200, 400).expert_state_size_bytes == 400
