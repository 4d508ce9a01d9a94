"""Plans of recorded routing from earlier steps alone: how even ranks are when the tokens of a later step are split."""

import numpy as np
import pytest

from relibra.evaluation import model_of
from relibra.planning import Cluster, Schedule, StepLoad, check_plan, imbalance
from relibra.planning.expected.loads import micro_batches_of, seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "num_nodes", "most"),
    [
        pytest.param("gpt-oss-20b_mmlu", 1, 1.001, marks=pytest.mark.long),
        ("gpt-oss-20b_mmlu", 2, 1.03),
        pytest.param("gpt-oss-20b_mmlu", 4, 1.075, marks=pytest.mark.long),
        pytest.param("deepseek-v2-lite_esft", 1, 1.004, marks=pytest.mark.long),
        ("deepseek-v2-lite_esft", 2, 1.02),
        pytest.param("deepseek-v2-lite_esft", 4, 1.045, marks=pytest.mark.long),
    ],
)
def test_a_step_is_nearly_even_though_nobody_knew_its_routing(traces_dir, name, num_nodes, most):
    trace = read_trace(traces_dir / f"{name}.npz")
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
    counts_SLE = count_sequences(trace)[np.random.default_rng(0).permutation(trace.num_sequences)]
    per_step = len(counts_SLE) // 5
    schedule = Schedule.round_robin(per_step, 4, cluster)
    seen = seen_load(micro_batches_of(counts_SLE[: 4 * per_step], schedule.row_S), cluster)
    load = StepLoad.of(counts_SLE[4 * per_step : 5 * per_step], schedule, cluster)
    plan = solve(load, schedule, model_of(trace), cluster, level=Level.HISTORY, seen=seen)
    check_plan(plan, load.load_MLE)
    assert imbalance(realised_loads(plan, load)) < most


@pytest.mark.traces
@pytest.mark.parametrize("num_nodes", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["gpt-oss-20b_mmlu", "deepseek-v2-lite_esft"])
def test_a_step_of_a_domain_that_nobody_saw_is_no_worse_than_plain(traces_dir, name, num_nodes):
    trace = read_trace(traces_dir / f"{name}.npz")
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
    counts_SLE = count_sequences(trace)
    domains = [
        domain for domain, number in zip(*np.unique(trace.domain, return_counts=True), strict=True) if number > 32
    ]
    assert len(domains) > 1
    for domain in domains:
        in_domain_S = trace.domain == domain
        of_step_SLE = counts_SLE[in_domain_S]
        schedule = Schedule.round_robin(len(of_step_SLE), 4, cluster)
        seen = seen_load(micro_batches_of(counts_SLE[~in_domain_S], schedule.row_S), cluster)
        load = StepLoad.of(of_step_SLE, schedule, cluster)
        plan = solve(load, schedule, model_of(trace), cluster, level=Level.HISTORY, seen=seen)
        assert imbalance(realised_loads(plan, load)) <= 1.01 * plan.prediction.imbalance_before, domain
