"""Plans under a memory budget (M1). m micro-batches, L layers, E experts, R ranks, Y replicas of a cell."""

import math
from dataclasses import replace

import numpy as np
import pytest

from relibra.planning import CostModel, PlanParams, Schedule, StepLoad
from relibra.planning.expected.loads import mean_micro_batch, seen_load
from relibra.planning.forecasts import Margin
from relibra.planning.load import home_loads
from relibra.planning.memory import ActivationMemory
from relibra.planning.peak import Held, Stage
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.planning.split import source_share

MEMORY = ActivationMemory(kept_bytes=100, working_bytes=40, num_stages=2)
DEAR = CostModel(expert_tokens=(0.0, 1.0), expert_us=(0.0, 1.0), host_us=1e6)
"""Under these prices no replica pays."""


def executed_loads(plan, counts_mRLE):
    """Return what ranks compute if each splits its own tokens over the copies of the plan, as at run time."""
    num_micro_batches, num_ranks, num_layers, _ = counts_mRLE.shape
    loads_mLR = np.zeros((num_micro_batches, num_layers, num_ranks), dtype=np.int64)
    gpus = plan.cluster.gpus_per_node
    for m in range(num_micro_batches):
        for layer in range(num_layers):
            of_cell = (plan.replica_index_Y4[:, 0] == m) & (plan.replica_index_Y4[:, 1] == layer)
            expert_Y, rank_Y = plan.replica_index_Y4[of_cell, 2:].T
            home_E, counts_RE = plan.home_rank_LE[layer], counts_mRLE[m, :, layer]
            np.add.at(loads_mLR[m, layer], home_E, counts_RE.sum(axis=0))
            for source in range(num_ranks):
                share_Y = source_share(counts_RE, home_E, expert_Y.copy(), rank_Y.copy(), gpus, source)
                np.add.at(loads_mLR[m, layer], rank_Y, share_Y)
                np.subtract.at(loads_mLR[m, layer], home_E[expert_Y], share_Y)
    return loads_mLR


def most_bytes(loads_mLR, memory):
    stages = Stage.all_of(memory, *loads_mLR.shape[:2])
    return max(Held.of(loads_mLR, stage).size_TR(memory).max() for stage in stages)


@pytest.mark.parametrize("num_steps", [150, pytest.param(10_000, marks=pytest.mark.long)])
def test_M1_no_step_that_a_plan_calls_safe_goes_over_its_budget(random_problem, num_steps):
    rng = np.random.default_rng(0)
    num_safe = num_over = num_saved = 0
    for step in range(num_steps):
        problem = random_problem.random(step, num_sequences=9, scale=60)
        counts_mRLE = np.zeros((3, 4, 2, 8), dtype=np.int64)
        where = problem.schedule.micro_batch_S, problem.schedule.source_rank_S
        np.add.at(counts_mRLE, where, problem.load.counts_SLE)
        counts_mRLE = counts_mRLE[: problem.schedule.num_micro_batches]
        budget_bytes = int(rng.uniform(0.4, 1.05) * most_bytes(executed_loads(_identity(problem), counts_mRLE), MEMORY))
        params = PlanParams(min_tokens_per_replica=1, memory=replace(MEMORY, budget_bytes=budget_bytes))
        plan = replace(problem, params=params).solve()
        took_bytes = most_bytes(executed_loads(plan, counts_mRLE), MEMORY)
        assert took_bytes == plan.prediction.memory.after.size_bytes
        assert (took_bytes > budget_bytes) == bool(plan.prediction.excess)
        num_safe += took_bytes <= budget_bytes
        num_over += took_bytes > budget_bytes
        num_saved += took_bytes <= budget_bytes < plan.prediction.memory.before.size_bytes
    assert min(num_safe, num_over, num_saved) > num_steps / 20


def _identity(problem):
    params = PlanParams(homes_stay=True)
    cluster = replace(problem.cluster, redundant_slots=0)
    return replace(problem, params=params, cluster=cluster).solve()


def test_M1_prices_give_way_where_a_rank_would_be_over_its_budget(random_problem):
    problem = random_problem.random(3, num_nodes=1, gpus_per_node=4, num_sequences=16, expert_weight_size_bytes=1 << 20)
    kept = PlanParams(cost=DEAR, homes_stay=True, memory=ActivationMemory(kept_bytes=1 << 20))
    dear = replace(problem, params=kept).solve()
    assert dear.prediction.num_replicas == 0
    budget_bytes = (dear.prediction.memory.after.size_bytes or 0) * 9 // 10
    tight = replace(problem, params=replace(kept, memory=replace(kept.memory, budget_bytes=budget_bytes))).solve()
    assert tight.prediction.num_replicas
    assert tight.prediction.memory.after.size_bytes <= budget_bytes
    assert tight.prediction.excess == ""
    assert tight.params.cost == DEAR
    none_fits = replace(problem, params=replace(kept, memory=replace(kept.memory, budget_bytes=1))).solve()
    assert none_fits.prediction.excess in none_fits.reason


@pytest.mark.parametrize("hot", range(5))
def test_M1_at_level_history_the_hottest_of_all_micro_batches_that_were_seen_counts(random_problem, hot):
    past = random_problem.random(2, num_sequences=40, num_micro_batches=5)
    seen_MLE = past.load_MLE.copy()
    seen_MLE[hot] *= 50
    seen = seen_load(seen_MLE, past.cluster)
    mean = mean_micro_batch(seen_MLE, past.cluster)
    params = PlanParams(memory=MEMORY, homes_stay=True)
    plan = solve(*mean, past.model, past.cluster, params, level=Level.HISTORY, seen=seen)
    plain_MLR = home_loads(seen.load_MLE, past.cluster.identity_placement(past.model), past.cluster.num_ranks)
    promised = plan.prediction.memory
    assert promised.before.size_bytes == most_bytes(plain_MLR, MEMORY)
    assert promised.before.size_bytes > 5 * most_bytes(np.delete(plain_MLR, hot, axis=0), MEMORY)
    assert promised.after.size_bytes <= promised.before.size_bytes
    margin = Margin(1.25, "a quarter more")
    more = solve(*mean, past.model, past.cluster, params, level=Level.HISTORY, seen=seen, memory_margin=margin)
    assert more.prediction.memory.before == promised.before
    assert more.prediction.memory.after.size_bytes == math.ceil(1.25 * promised.after.size_bytes)
    assert more.prediction.memory.margin == 1.25
    assert "; a quarter more; " in more.reason


def test_M1_nothing_is_promised_where_micro_batches_or_a_backward_are_not_known(random_problem):
    problem = random_problem.random(1)
    params = PlanParams(memory=replace(MEMORY, budget_bytes=1))
    asked = problem.load, problem.schedule, problem.model, problem.cluster, params
    of_step = solve(*asked, level=Level.STEP, seen=problem.load).prediction
    assert of_step.memory.after.size_bytes is None
    assert of_step.memory.after.cum_overload > 1
    assert of_step.excess == ""
    forward_only = replace(problem.schedule, is_forward_only=True)
    plan = solve(problem.load, forward_only, problem.model, problem.cluster, params)
    assert plan.prediction.memory is None
    assert plan.prediction.excess == ""
    assert solve(*asked).prediction.excess


def test_rows_of_ep_groups_are_peaks_of_their_own(random_problem):
    problem = random_problem.random(4, num_ep_groups=2, num_sequences=24)
    peak = replace(problem, params=PlanParams(memory=MEMORY)).solve().prediction.memory.after
    loads_MLR = replace(problem, params=PlanParams(memory=MEMORY)).solve().rank_loads_MLR
    halves = loads_MLR.reshape(2, -1, *loads_MLR.shape[1:])
    assert peak.size_bytes == max(most_bytes(half, MEMORY) for half in halves)


def test_a_schedule_without_tokens_is_planned(random_problem):
    problem = random_problem.random(5)
    nothing = np.zeros_like(problem.load.counts_SLE)
    schedule = Schedule(
        micro_batch_S=problem.schedule.micro_batch_S,
        source_rank_S=problem.schedule.source_rank_S,
        ep_group_S=problem.schedule.ep_group_S,
    )
    load = StepLoad.of(nothing, schedule, problem.cluster)
    plan = solve(load, schedule, problem.model, problem.cluster, PlanParams(memory=MEMORY))
    assert plan.prediction.memory.after.size_bytes == 0
