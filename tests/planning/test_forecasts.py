"""The margin of memory forecasts."""

from collections import deque

import numpy as np
import pytest
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.execution import sample_micro_batches
from relibra.planning.expected.loads import WINDOW, mean_micro_batch, seen_load
from relibra.planning.forecasts import NO_MARGIN, choose_margin
from relibra.planning.memory import ActivationMemory
from relibra.planning.peak import find_peak
from relibra.planning.plan import Level
from relibra.planning.replicas.replicate import in_all_rows
from relibra.planning.solve import solve


@pytest.mark.parametrize(("num_steps", "risk"), [(4, 0.2), (19, 0.05), (64, 3 / 65)])
def test_M1_the_next_step_exceeds_the_margin_of_earlier_ones_as_rarely_as_said(num_steps: int, risk: float) -> None:
    rng = np.random.default_rng(0)
    trials = 1 + rng.pareto(3, (4000, num_steps + 1))  # a heavy tail
    num_exceeded = sum(last > choose_margin(earlier).factor for *earlier, last in trials.tolist())
    assert num_exceeded / len(trials) == pytest.approx(risk, rel=0.15)


def test_a_forecast_never_falls_below_what_was_seen() -> None:
    assert choose_margin([]) == choose_margin([0.5, 0.9, 1.0]) == NO_MARGIN


def test_the_reason_says_which_quantile_it_is() -> None:
    assert "1.300 times that of micro-batches seen (the most of 3 steps)" in choose_margin([1.1, 1.3, 0.9]).reason
    assert "(2 of the last 64 steps took more)" in choose_margin([1 + i / 100 for i in range(64)]).reason


def test_M1_steps_of_many_micro_batches_rarely_exceed_a_forecast_with_a_margin() -> None:
    """Reports tell four micro-batches of a step, and each step has 16."""
    rng = np.random.default_rng(0)
    model, cluster = (
        Model(num_layers=2, num_experts=16, top_k=2),
        Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2),
    )
    params = PlanParams(homes_stay=True, memory=ActivationMemory(kept_bytes=100, working_bytes=40))
    seen, parts, num_exceeded, num_without = deque[NDArray[np.int64]](maxlen=WINDOW), list[float](), 0, 0
    for _ in range(60):
        share_MLE = rng.dirichlet(np.full(16, 0.7), size=(16, 2))
        load_MLE = rng.multinomial(2048, share_MLE)
        if seen:
            seen_NLE, margin = np.concatenate(seen), choose_margin(parts)
            plan = solve(
                *mean_micro_batch(seen_NLE, cluster),
                model,
                cluster,
                params,
                level=Level.HISTORY,
                seen=seen_load(seen_NLE, cluster),
                memory_margin=margin,
            )
            memory = plan.prediction.memory
            assert memory is not None
            assert memory.after.size_bytes is not None
            index_Y4 = in_all_rows(plan.replica_index_Y4, len(load_MLE))
            ran = Assignment.of_replicas(seen_load(load_MLE, cluster), plan.home_rank_LE, index_Y4, cluster)
            took_bytes = find_peak(ran.rank_loads_MLR(cluster), params.memory).size_bytes
            assert took_bytes is not None
            num_exceeded += took_bytes > memory.after.size_bytes
            num_without += took_bytes > memory.after.size_bytes / margin.factor
            parts.append(took_bytes / memory.after.size_bytes * margin.factor)
        seen.append(load_MLE[sample_micro_batches(len(load_MLE))])
    assert num_without > 40
    assert num_exceeded < 6
