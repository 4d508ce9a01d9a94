from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Schedule, StepLoad, check_plan, imbalance
from relibra.planning.bound import lower_bound_ML
from relibra.planning.load import home_loads
from relibra.planning.replan import replan
from relibra.planning.solve import solve


def _counts(model, num_sequences=64, seed=0):
    rng = np.random.default_rng(seed)
    popularity_LE = rng.lognormal(0, 1.0, (model.num_layers, model.num_experts))
    taste_SLE = rng.lognormal(0, 0.7, (num_sequences, model.num_layers, model.num_experts))
    return rng.poisson(popularity_LE * taste_SLE * 50)


def _schedule(cluster, num_sequences, num_micro_batches, seed):
    rng = np.random.default_rng(seed)
    return Schedule(
        micro_batch_S=rng.permutation(num_sequences) % num_micro_batches,
        source_rank_S=rng.integers(0, cluster.num_ranks, num_sequences),
        ep_group_S=np.zeros(num_sequences, dtype=np.int32),
    )


class _Step:
    """A step of 64 sequences that was planned once."""

    def __init__(self, random_problem, *, num_nodes=2, experts_per_rank=2, num_micro_batches=8, seed=0):
        problem = random_problem.random(
            0, num_nodes=num_nodes, gpus_per_node=4, experts_per_rank=experts_per_rank, num_layers=3
        )
        self.model, self.cluster = problem.model, problem.cluster
        self.counts_SLE = _counts(self.model, seed=seed)
        self.schedule = _schedule(self.cluster, 64, num_micro_batches, seed)
        self.plan = self.solve(self.schedule)

    def load(self, schedule, cluster=None):
        return StepLoad.of(self.counts_SLE, schedule, cluster or self.cluster)

    def solve(self, schedule, cluster=None, previous_LE=None):
        cluster = cluster or self.cluster
        return solve(self.load(schedule, cluster), schedule, self.model, cluster, None, previous_LE)


def _move_one(schedule, sequence=0):
    micro_batch_S = schedule.micro_batch_S.copy()
    micro_batch_S[sequence] = (micro_batch_S[sequence] + 1) % schedule.num_micro_batches
    return replace(schedule, micro_batch_S=micro_batch_S)


def _by_row(plan):
    row_Q = plan.quota_index_Q4[:, 0]
    return [
        np.column_stack([plan.quota_index_Q4[row_Q == row, 1:], plan.quota_tokens_Q[row_Q == row]])
        for row in range(plan.num_rows)
    ]


def test_the_same_schedule_gives_the_same_plan(random_problem):
    step = _Step(random_problem)
    again = replan(step.plan, step.load(step.schedule), step.schedule)
    for name, array in step.plan.arrays().items():
        np.testing.assert_array_equal(again.arrays()[name], array)
    assert "24 of 24 cells reuse the quotas they had" in again.reason
    assert "every layer keeps its homes" in again.reason
    assert again.forecast.num_moved_experts == 0
    assert again.forecast.imbalance_after == step.plan.forecast.imbalance_after


def test_a_sequence_that_moves_changes_two_rows_only(random_problem):
    step = _Step(random_problem)
    schedule = _move_one(step.schedule)
    plan = replan(step.plan, step.load(schedule), schedule)
    check_plan(plan, step.load(schedule).load_MLE)
    touched = {int(step.schedule.micro_batch_S[0]), int(schedule.micro_batch_S[0])}
    np.testing.assert_array_equal(plan.home_rank_LE, step.plan.home_rank_LE)
    for row, (before, after) in enumerate(zip(_by_row(step.plan), _by_row(plan), strict=True)):
        assert np.array_equal(before, after) == (row not in touched)
    assert "18 of 24 cells reuse the quotas they had" in plan.reason
    np.testing.assert_array_equal(
        plan.lower_bound_ML, lower_bound_ML(step.load(schedule).load_MLE, plan.home_rank_LE, step.cluster)
    )


def test_micro_batches_are_found_again_under_other_numbers(random_problem):
    step = _Step(random_problem)
    schedule = replace(step.schedule, micro_batch_S=7 - step.schedule.micro_batch_S)
    plan = replan(step.plan, step.load(schedule), schedule)
    check_plan(plan, step.load(schedule).load_MLE)
    assert "24 of 24 cells reuse the quotas they had" in plan.reason
    for before, after in zip(_by_row(step.plan), reversed(_by_row(plan)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_another_source_rank_keeps_the_quotas_and_splits_them_anew(random_problem):
    step = _Step(random_problem)
    schedule = replace(step.schedule, source_rank_S=(step.schedule.source_rank_S + 1) % step.cluster.num_ranks)
    plan = replan(step.plan, step.load(schedule), schedule)
    check_plan(plan, step.load(schedule).load_MLE)
    np.testing.assert_array_equal(plan.quota_tokens_Q, step.plan.quota_tokens_Q)
    assert (plan.shares.to_array() != step.plan.shares.to_array()).any()


@pytest.mark.parametrize("num_micro_batches", [4, 8, 12])
@pytest.mark.parametrize("seed", range(3))
def test_another_schedule_is_planned_about_as_well_as_from_scratch(random_problem, seed, num_micro_batches):
    step = _Step(random_problem, num_nodes=4, experts_per_rank=4, seed=seed)
    schedule = _schedule(step.cluster, 64, num_micro_batches, seed + 100)
    plan = replan(step.plan, step.load(schedule), schedule)
    check_plan(plan, step.load(schedule).load_MLE)
    scratch = step.solve(schedule, previous_LE=step.plan.home_rank_LE)
    assert plan.forecast.imbalance_after <= 1.01 * scratch.forecast.imbalance_after


def test_a_load_that_the_homes_no_longer_fit_reorders(random_problem):
    step = _Step(random_problem, num_nodes=4, experts_per_rank=4)
    hot_E = step.plan.home_rank_LE[1] // 4 == 2
    step.counts_SLE[:, 1, hot_E] *= 20
    plan = replan(step.plan, step.load(step.schedule), step.schedule)
    check_plan(plan, step.load(step.schedule).load_MLE)
    moved_L = (plan.home_rank_LE != step.plan.home_rank_LE).any(axis=1)
    np.testing.assert_array_equal(moved_L, [False, True, False])
    assert plan.forecast.num_moved_experts == (plan.home_rank_LE != step.plan.home_rank_LE).sum()
    scratch = step.solve(step.schedule, previous_LE=step.plan.home_rank_LE)
    assert plan.forecast.imbalance_after <= 1.01 * scratch.forecast.imbalance_after


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_S2_every_plan_made_again_is_valid_and_never_worse_than_plain(problems, data):
    problem = data.draw(problems)
    plan = problem.solve()
    num_sequences = problem.schedule.num_sequences
    schedule = replace(
        problem.schedule,
        micro_batch_S=np.array(data.draw(st.lists(st.integers(0, 3), min_size=num_sequences, max_size=num_sequences))),
    )
    rng = np.random.default_rng(num_sequences)
    counts_SLE = rng.integers(0, 40, (num_sequences, problem.model.num_layers, problem.model.num_experts))
    load = StepLoad.of(counts_SLE, schedule, problem.cluster)
    again = replan(plan, load, schedule)
    check_plan(again, load.load_MLE)
    identity_LE = problem.cluster.identity_placement(problem.model)
    plain_L = home_loads(load.load_MLE, identity_LE, problem.cluster.num_ranks).max(axis=-1).sum(axis=0)
    assert (again.rank_loads_MLR.max(axis=-1).sum(axis=0) <= plain_L).all()
    assert again.forecast.imbalance_after == imbalance(again.rank_loads_MLR)
    assert again.digest == replan(plan, load, schedule).digest


def test_after_a_lost_node_its_experts_get_homes_on_the_others(random_problem):
    step = _Step(random_problem, num_nodes=4, experts_per_rank=3)
    cluster = replace(step.cluster, num_nodes=3)
    rank_was_R = np.array([rank for rank in range(16) if rank // 4 != 1])
    schedule = _schedule(cluster, 64, 8, 0)
    load = step.load(schedule, cluster)
    plan = replan(step.plan, load, schedule, cluster, rank_was_R=rank_was_R)
    check_plan(plan, load.load_MLE)
    stay_LE = rank_was_R[plan.home_rank_LE] == step.plan.home_rank_LE
    assert f"{stay_LE.sum()} of 144 experts stay where they were, 36 were on ranks that are gone" in plan.reason
    assert plan.forecast.num_moved_experts == 144 - stay_LE.sum() >= 36
    assert stay_LE.mean() > 0.25
    scratch = step.solve(schedule, cluster)
    assert plan.forecast.imbalance_after <= 1.01 * scratch.forecast.imbalance_after


@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(1, 4), (2, 2), (4, 2), (1, 8), (2, 4), (4, 4), (8, 2)])
def test_other_cluster_shapes(random_problem, num_nodes, gpus_per_node):
    step = _Step(random_problem)
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=2)
    schedule = _schedule(cluster, 64, 8, 0)
    load = step.load(schedule, cluster)
    plan = replan(step.plan, load, schedule, cluster)
    check_plan(plan, load.load_MLE)
    scratch = step.solve(schedule, cluster)
    assert plan.forecast.imbalance_after <= 1.01 * scratch.forecast.imbalance_after


def test_other_slots_keep_every_home(random_problem):
    step = _Step(random_problem)
    cluster = replace(step.cluster, redundant_slots=3)
    plan = replan(step.plan, step.load(step.schedule), step.schedule, cluster)
    assert plan.cluster == cluster
    assert (plan.home_rank_LE == step.plan.home_rank_LE).mean() > 0.8


def test_ranks_that_do_not_divide_the_experts_are_refused(random_problem):
    step = _Step(random_problem)
    cluster = replace(step.cluster, num_nodes=3)
    schedule = _schedule(cluster, 64, 8, 0)
    with pytest.raises(InvalidInput, match="multiple of the 12 EP ranks"):
        replan(step.plan, step.load(schedule, cluster), schedule, cluster)


@pytest.mark.parametrize("rank_was_R", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 8], [0, 1, 2, -2], [0.0, 1.0, 2.0, 3.0]])
def test_ranks_that_never_were_are_refused(random_problem, rank_was_R):
    step = _Step(random_problem)
    cluster = replace(step.cluster, num_nodes=1)
    schedule = _schedule(cluster, 64, 8, 0)
    with pytest.raises(InvalidInput, match="rank_was: expected for each of the 4 ranks"):
        replan(step.plan, step.load(schedule, cluster), schedule, cluster, rank_was_R=np.array(rank_was_R))


def test_a_load_of_another_schedule_is_refused(random_problem):
    step = _Step(random_problem)
    with pytest.raises(InvalidInput, match=r"load: expected \[M, R, L, E\]"):
        replan(step.plan, step.load(step.schedule), _schedule(step.cluster, 64, 5, 0))
