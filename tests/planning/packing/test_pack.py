from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.packed_steps import DEAR, PackedStep, steps
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model, PlanParams, Schedule, StepLoad, check_placement, check_plan
from relibra.planning.memory import ActivationMemory
from relibra.planning.packing.caps import SLACK
from relibra.planning.packing.judge import judge_of
from relibra.planning.packing.length_balance import length_balanced
from relibra.planning.packing.pack import pack, repack
from relibra.planning.solve import solve


@given(step=steps, params=st.sampled_from([None, DEAR]))
@settings(max_examples=15, deadline=None)
def test_sequences_stay_within_the_budget_and_lengths_about_as_balanced_as_by_length_alone(step, params):
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, _ = step.pack(budget, params=params)
    schedule = packing.schedule
    schedule.check(step.cluster)
    check_placement(packing.home_LE, step.model, step.cluster)
    assert schedule.num_sequences == len(step.length_S)
    assert schedule.num_micro_batches == step.start.num_micro_batches
    assert step.sizes_MR(schedule, step.length_S).max() <= budget
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    for number_S in (step.length_S, step.length_S**2):
        slowest, most = (step.sizes_MR(each, number_S).max(axis=1).sum() for each in (schedule, balanced))
        assert slowest <= (1 + SLACK) * most


@pytest.mark.long
@given(step=steps)
@settings(max_examples=15, deadline=None)
def test_the_floor_is_never_above_the_one_of_the_schedule_packing_starts_from(step):
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, reason = step.pack(budget)
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    assert step.floor(packing.schedule, packing.home_LE) <= step.floor(balanced)
    assert "packing brings the floor" in reason


@given(step=steps)
@settings(max_examples=15, deadline=None)
def test_S2_the_plan_of_a_packed_schedule_is_valid_and_says_so(step):
    packing, _ = step.pack()
    load = StepLoad.of(step.counts_SLE, packing.schedule, step.cluster)
    plan = solve(load, packing.schedule, step.model, step.cluster, packing=packing)
    check_plan(plan, load.load_MLE)
    assert plan.repacked
    assert "packed" in plan.reason
    identity_LE = step.cluster.identity_placement(step.model)
    assert plan.prediction.num_moved_experts == (plan.home_rank_LE != identity_LE).sum()


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))])
def test_domains_are_spread_so_that_most_of_the_floor_above_balance_goes(seed):
    step = PackedStep.random(seed, num_sequences=128, num_layers=6, shape=(4, 2))
    packing, _ = step.pack()
    ideal = step.counts_SLE.sum() / 4
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    others = [step.start, length_balanced(step.length_S, 4, step.cluster, budget)]
    excess = step.floor(packing.schedule, packing.home_LE) - ideal
    assert all(excess < 0.6 * (step.floor(other) - ideal) for other in others)


def test_sequences_start_on_the_node_that_has_their_experts():
    """With one micro-batch and two kinds of sequences that share no expert, only source ranks can be chosen."""
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    model = Model(num_layers=1, num_experts=8, top_k=4)
    counts_SLE = np.zeros((8, 1, 8), dtype=np.uint32)
    counts_SLE[::2, 0, :4] = 100
    counts_SLE[1::2, 0, 4:] = 100
    start = Schedule.round_robin(8, 1, cluster)
    packing, reason = pack(counts_SLE, np.full(8, 100), start, model, cluster)
    node_S = packing.schedule.source_rank_S // 2
    home_node_E = packing.home_LE[0] // 2
    np.testing.assert_array_equal(node_S, np.where(np.arange(8) % 2, home_node_E[4], home_node_E[0]))
    np.testing.assert_array_equal(np.bincount(packing.schedule.source_rank_S), [2, 2, 2, 2])
    assert "stay on their node" in reason
    assert reason.endswith("to 100.0%")


def _modelled_time(step, schedule, packing=None):
    """Return the modelled time of the plan for a schedule, its share of local copies, and its imbalance."""
    load = StepLoad.of(step.counts_SLE, schedule, step.cluster)
    plan = solve(load, schedule, step.model, step.cluster, DEAR, packing=packing)
    check_plan(plan, load.load_MLE)
    return plan.prediction.time_us, step.num_local(schedule, plan.home_rank_LE) / step.counts_SLE.sum()


@pytest.mark.long
@pytest.mark.parametrize("slots", [0, 1])
def test_where_dispatch_has_a_price_packing_takes_less_modelled_time_than_packing_by_tokens(slots):
    step = PackedStep.random(11, num_sequences=96, shape=(3, 2), slots=slots)
    by_time, reason = step.pack(params=DEAR)
    by_tokens, _ = step.pack()
    balanced = length_balanced(step.length_S, 4, step.cluster, 10**6)
    time_us, local = _modelled_time(step, by_time.schedule, by_time)
    assert time_us < 0.97 * _modelled_time(step, by_tokens.schedule)[0]
    assert time_us < 0.9 * _modelled_time(step, balanced)[0]
    assert local > _modelled_time(step, balanced)[1]
    assert "packing brings the modelled time of experts and dispatch" in reason


def test_source_ranks_are_never_chosen_to_send_more_across_nodes():
    step = PackedStep.random(5, num_sequences=96, shape=(4, 2))
    packing, _ = step.pack()
    assert step.num_local(packing.schedule, packing.home_LE) > step.counts_SLE.sum() / 4


def test_a_schedule_that_is_packed_already_is_not_made_worse():
    step = PackedStep.random(7, num_sequences=96)
    first, _ = step.pack()
    again, _ = pack(step.counts_SLE, step.length_S, first.schedule, step.model, step.cluster, None)
    assert step.floor(again.schedule, again.home_LE) <= step.floor(first.schedule)


def test_one_node_has_no_floor_to_lower_and_says_so():
    step = PackedStep.random(0, shape=(1, 4))
    _, reason = step.pack()
    assert "floor of ranks" in reason
    assert reason.endswith("with one node, replicas reach any balance that packing could reach")


def test_fewer_sequences_than_ranks():
    step = PackedStep.random(1, num_sequences=3, num_micro_batches=3, shape=(2, 4))
    packing, _ = step.pack()
    assert sorted(packing.schedule.micro_batch_S) == [0, 1, 2]


def test_counts_near_the_largest_int32_do_not_overflow():
    step = PackedStep.random(3)
    scale = (2**31 - 1) // int(step.counts_SLE.max())
    packing, _ = pack(step.counts_SLE * np.uint32(scale), step.length_S * 500, step.start, step.model, step.cluster)
    huge = step.floor(packing.schedule, packing.home_LE)
    assert huge <= step.floor(length_balanced(step.length_S, 4, step.cluster, 10**9))


def test_a_giant_sequence_is_refused_by_name():
    step = PackedStep.random(4)
    step.length_S[17] = 5000
    with pytest.raises(InvalidInput, match="token_budget: expected at least the 5000 tokens of sequence 17, got 4096"):
        step.pack(4096)


def test_counts_of_another_shape_are_refused():
    step = PackedStep.random(4)
    with pytest.raises(InvalidInput, match=r"counts: expected shape \[S, L, E\]"):
        pack(step.counts_SLE[:, :1], step.length_S, step.start, step.model, step.cluster)
    with pytest.raises(InvalidInput, match="lengths: expected 48 numbers"):
        pack(step.counts_SLE, step.length_S[1:], step.start, step.model, step.cluster)


def _with_memory(step, share_of_start):
    """Return parameters whose budget is a share of the least memory that the start of packing takes."""
    memory = ActivationMemory(kept_bytes=64, working_bytes=32, budget_bytes=1)
    judge = judge_of(
        step.counts_SLE, step.length_S, step.start, step.model, step.cluster, PlanParams(memory=memory), None
    )
    peak_bytes = judge.judge(step.start).peak_bytes
    return PlanParams(memory=replace(memory, budget_bytes=int(share_of_start * peak_bytes)))


def _least_bytes(step, packing, params):
    judge = judge_of(step.counts_SLE, step.length_S, step.start, step.model, step.cluster, params, None)
    return judge.judge(packing.schedule, packing.home_LE).peak_bytes


@given(step=steps, share=st.floats(0.3, 1.2))
@settings(max_examples=15, deadline=None)
def test_M1_packing_never_needs_more_memory_above_a_budget_than_its_start(step, share):
    params = _with_memory(step, share)
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    judge = judge_of(step.counts_SLE, step.length_S, step.start, step.model, step.cluster, params, None)
    packing, _ = step.pack(budget, params=params)
    at_least = max(params.memory.budget_bytes, judge.judge(balanced).peak_bytes)
    assert _least_bytes(step, packing, params) <= at_least


@pytest.mark.parametrize("seed", range(3))
def test_M1_packing_keeps_every_micro_batch_under_a_budget_that_its_start_exceeds(seed):
    """Long sequences come first, so the first micro-batch takes almost twice the mean."""
    step = PackedStep.random(seed, num_sequences=96, num_layers=4, shape=(1, 4))
    order_S = np.argsort(-step.length_S)
    step = replace(
        step,
        counts_SLE=step.counts_SLE[order_S],
        length_S=step.length_S[order_S],
        start=replace(step.start, micro_batch_S=np.arange(96) // 24, source_rank_S=np.arange(96) % 4),
    )
    mean = step.counts_SLE.sum() / 4 / 4
    memory = ActivationMemory(kept_bytes=1 << 20, budget_bytes=int(1.1 * mean) << 20)
    args = step.counts_SLE, step.length_S, step.start, step.model, step.cluster
    free, _ = repack(*args, PlanParams(homes_stay=True))
    tight, reason = repack(*args, params := PlanParams(homes_stay=True, memory=memory))
    assert _least_bytes(step, free, params) > 1.4 * memory.budget_bytes
    assert _least_bytes(step, tight, params) <= memory.budget_bytes
    assert "of a budget of" in reason
    load = StepLoad.of(step.counts_SLE, tight.schedule, step.cluster)
    plan = solve(load, tight.schedule, step.model, step.cluster, params, packing=tight)
    assert not plan.prediction.excess
