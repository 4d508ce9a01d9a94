"""What repacking keeps, and that it never costs more than the schedule that it begins from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.packed_steps import DEAR, PackedStep, steps
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Freedom, Model, PlanParams, Schedule, StepLoad, check_placement, check_plan
from relibra.planning.packing.caps import SLACK
from relibra.planning.packing.judge import judge_of
from relibra.planning.packing.pack import repack
from relibra.planning.schedule import PackingRules
from relibra.planning.solve import solve

_rules = st.builds(PackingRules, freedom=st.sampled_from(Freedom), keeps_counts=st.booleans())
_params = st.sampled_from([PlanParams(), DEAR, PlanParams(seed=5)])


def _repack(step: PackedStep, rules: PackingRules, params: PlanParams | None = None, **fields: object):
    return repack(step.counts_SLE, step.length_S, step.start, step.model, step.cluster, params, rules=rules, **fields)


def _on_some_ranks(step: PackedStep) -> PackedStep:
    """Let every data-parallel rank span two EP ranks, of which the first one is the source."""
    rank_S = step.start.source_rank_S // 2 * 2
    return replace(step, start=replace(step.start, source_rank_S=rank_S))


@given(step=steps, rules=_rules, params=_params, spans_two=st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_the_rules_keep_is_kept(step, rules, params, spans_two):
    step = _on_some_ranks(step) if spans_two else step
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, _ = _repack(step, rules, params)
    schedule, start = packing.schedule, step.start
    schedule.check(step.cluster)
    check_placement(packing.home_LE, step.model, step.cluster)
    assert schedule.num_micro_batches == start.num_micro_batches
    np.testing.assert_array_equal(np.bincount(schedule.row_S, minlength=9), np.bincount(start.row_S, minlength=9))
    assert set(schedule.source_rank_S) <= set(start.source_rank_S)
    if rules.freedom is Freedom.RANKS:
        np.testing.assert_array_equal(schedule.row_S, start.row_S)
    if rules.keeps_counts:
        ones_S = np.ones(len(step.length_S), dtype=np.int64)
        np.testing.assert_array_equal(step.sizes_MR(schedule, ones_S), step.sizes_MR(start, ones_S))
    assert step.sizes_MR(schedule, step.length_S).max() <= budget
    for number_S in (step.length_S, step.length_S**2):
        slowest_M, most_M = (step.sizes_MR(each, number_S).max(axis=1) for each in (schedule, start))
        assert (slowest_M <= (1 + SLACK) * most_M).all()


@pytest.mark.long
@given(step=steps, rules=_rules, params=_params, is_first=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_packing_never_costs_more_than_the_schedule_that_it_begins_from(step, rules, params, is_first):
    current_LE = None if is_first else np.ascontiguousarray(step.cluster.identity_placement(step.model)[:, ::-1])
    packing, _ = _repack(step, rules, params, previous_home_LE=current_LE)
    judge = judge_of(step.counts_SLE, step.length_S, step.start, step.model, step.cluster, params, current_LE)
    judge = replace(judge, is_draft=True)
    assert judge.judge(packing.schedule, packing.home_LE).cost <= judge.judge(step.start, current_LE).cost


@given(step=steps, rules=_rules, params=_params, is_first=st.booleans())
@settings(max_examples=10, deadline=None)
def test_where_homes_stay_sequences_are_packed_for_those_of_plain_expert_parallelism(step, rules, params, is_first):
    identity_LE = step.cluster.identity_placement(step.model)
    current_LE = None if is_first else np.ascontiguousarray(identity_LE[:, ::-1])
    packing, _ = _repack(step, rules, replace(params or PlanParams(), homes_stay=True), previous_home_LE=current_LE)
    np.testing.assert_array_equal(packing.home_LE, identity_LE)


@given(step=steps, rules=_rules, params=_params)
@settings(max_examples=10, deadline=None)
def test_S8_equal_inputs_give_equal_packings(step, rules, params):
    (one, why), (other, why_again) = _repack(step, rules, params), _repack(step, rules, params)
    for field in ("micro_batch_S", "source_rank_S", "ep_group_S"):
        np.testing.assert_array_equal(getattr(one.schedule, field), getattr(other.schedule, field))
    assert why == why_again


@given(step=steps, params=_params)
@settings(max_examples=10, deadline=None)
def test_a_larger_budget_leaves_room_and_a_smaller_one_is_refused(step, params):
    needed = int(step.sizes_MR(step.start, step.length_S).max())
    packing, _ = _repack(step, PackingRules(token_budget=needed + 100), params)
    assert step.sizes_MR(packing.schedule, step.length_S).max() <= needed + 100
    with pytest.raises(InvalidInput, match=f"token_budget: expected at least the {needed} tokens that start needs"):
        _repack(step, PackingRules(token_budget=needed - 1), params)


@pytest.mark.parametrize("rules", [PackingRules(), PackingRules(freedom=Freedom.RANKS, keeps_counts=True)])
def test_where_dispatch_has_a_price_sequences_start_near_their_experts_and_plans_take_less_time(rules):
    step = PackedStep.random(11, num_sequences=96, shape=(3, 2))
    packing, reason = _repack(step, rules, DEAR)

    def time_us(schedule: Schedule) -> float:
        load = StepLoad.of(step.counts_SLE, schedule, step.cluster)
        plan = solve(load, schedule, step.model, step.cluster, DEAR)
        check_plan(plan, load.load_MLE)
        return plan.prediction.time_us

    assert time_us(packing.schedule) < 0.97 * time_us(step.start)
    assert "packing brings the modelled time of experts and dispatch" in reason


@pytest.mark.parametrize("seed", range(3))
def test_sequences_of_two_domains_that_start_everywhere_gather_on_the_nodes_of_their_experts(seed):
    num_sequences, (num_layers, num_experts) = 64, (4, 8)
    rng = np.random.default_rng(seed)
    domain_S = rng.integers(2, size=num_sequences)
    length_S = rng.integers(40, 120, size=num_sequences)
    share_2E = np.kron(np.array([[0.9, 0.1], [0.1, 0.9]]), np.full(num_experts // 2, 2 / num_experts))
    counts_SLE = np.array(
        [
            rng.multinomial(2 * length, share_2E[domain], size=num_layers)
            for length, domain in zip(length_S, domain_S, strict=True)
        ]
    )
    model = Model(num_layers=num_layers, num_experts=num_experts, top_k=2)
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    start = Schedule.round_robin(num_sequences, 2, cluster)
    rules = PackingRules(freedom=Freedom.RANKS, keeps_counts=True)
    packing, _ = repack(counts_SLE, length_S, start, model, cluster, DEAR, rules=rules)
    home_node_LE = packing.home_LE // cluster.gpus_per_node
    is_local_SLE = home_node_LE == packing.schedule.source_rank_S[:, None, None] // cluster.gpus_per_node
    assert counts_SLE[is_local_SLE].sum() > 0.7 * counts_SLE.sum()


def test_where_dispatch_is_free_rows_become_alike_and_the_floor_falls():
    step = PackedStep.random(3, num_sequences=128, num_layers=6, shape=(4, 2))
    packing, reason = _repack(step, PackingRules())
    ideal = step.counts_SLE.sum() / 4
    assert step.floor(packing.schedule, packing.home_LE) - ideal < 0.6 * (step.floor(step.start) - ideal)
    assert "packing brings the floor of nodes" in reason


@pytest.mark.long
@pytest.mark.parametrize("params", [PlanParams(), DEAR])
def test_the_order_in_which_sequences_are_named_matters_little(params):
    """The search draws sequences by index, so the packing may differ, and its cost by a few per cent of the gain."""
    step = PackedStep.random(9, num_sequences=96, shape=(2, 2))
    costs = []
    for order_S in (np.arange(96), np.random.default_rng(0).permutation(96)):
        fields = {each: getattr(step.start, each)[order_S] for each in ("micro_batch_S", "source_rank_S", "ep_group_S")}
        named = replace(step, counts_SLE=step.counts_SLE[order_S], length_S=step.length_S[order_S])
        named = replace(named, start=Schedule(**fields))
        packing, _ = _repack(named, PackingRules(), params)
        judge = judge_of(named.counts_SLE, named.length_S, named.start, step.model, step.cluster, params, None)
        costs.append((judge.judge(packing.schedule, packing.home_LE).cost, judge.judge(named.start).cost))
    (one, before), (other, same_before) = costs
    assert before == same_before
    assert abs(one - other) <= 0.1 * (before - min(one, other))


@pytest.mark.parametrize("params", [PlanParams(), DEAR])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("case", ["no tokens", "one sequence", "one expert on each rank", "one rank"])
def test_steps_with_little_to_pack_are_packed(case, is_first, params):
    step = PackedStep.random(3, num_sequences=1 if case == "one sequence" else 12, num_micro_batches=1)
    if case == "no tokens":
        step = replace(step, counts_SLE=np.zeros_like(step.counts_SLE), length_S=np.zeros_like(step.length_S))
    elif case == "one expert on each rank":
        counts_SLE = np.ascontiguousarray(step.counts_SLE[..., : step.cluster.num_ranks])
        step = replace(step, counts_SLE=counts_SLE, model=replace(step.model, num_experts=step.cluster.num_ranks))
    elif case == "one rank":
        step = PackedStep.random(3, num_sequences=12, shape=(1, 1), slots=0)
    home_LE = None if is_first else step.cluster.identity_placement(step.model)
    packing, _ = _repack(step, PackingRules(), params, previous_home_LE=home_LE)
    packing.schedule.check(step.cluster)
    assert packing.schedule.num_sequences == len(step.length_S)
    np.testing.assert_array_equal(np.bincount(packing.schedule.row_S), np.bincount(step.start.row_S))
