"""How often a step took more memory than its plan had forecast."""

from dataclasses import replace

import pytest

from harness.executed_plan import EXECUTION, PLAN
from relibra.planning import Phase
from relibra.planning.execution import Execution
from relibra.planning.peak import Peak, StepMemory
from relibra.planning.plan import Level
from relibra.status.memory_forecasts import MemoryForecasts, count_exceeded
from relibra.store import PlanRecord


def plan(level: Level, size_bytes: int | None) -> PlanRecord:
    memory = StepMemory(before=Peak(), after=Peak(cum_overload=1.5, size_bytes=size_bytes))
    return replace(PLAN, prediction=replace(PLAN.prediction, level=level, memory=memory))


def ran(cum_overload: float | None, peak_bytes: int | None) -> list[Execution]:
    recompute = replace(EXECUTION, phase=Phase.RECOMPUTE, cum_overload=None, peak_bytes=None)
    return [recompute, replace(EXECUTION, cum_overload=cum_overload, peak_bytes=peak_bytes)]


def test_steps_that_took_more_bytes_than_forecast_are_counted() -> None:
    steps = [(plan(Level.HISTORY, 100), ran(1.0, each)) for each in (99, 100, 101, 200)]
    forecasts = count_exceeded(steps)
    assert forecasts == MemoryForecasts(num_steps=4, num_exceeded=2)
    assert forecasts.share == "2 of 4"


def test_where_bytes_are_not_known_copies_over_the_mean_are_compared() -> None:
    steps = [(plan(Level.STEP, None), ran(each, None)) for each in (1.4, 1.6)]
    assert count_exceeded(steps) == MemoryForecasts(num_steps=2, num_exceeded=1)


@pytest.mark.parametrize(
    ("plan", "executions"),
    [
        (plan(Level.MICRO_BATCHES, 100), ran(2.0, 200)),
        (None, ran(2.0, 200)),
        (plan(Level.HISTORY, 100), ran(None, None)),
        (plan(Level.HISTORY, 100), [replace(each, applied=None) for each in ran(2.0, 200)]),
        (replace(PLAN, prediction=replace(PLAN.prediction, level=Level.HISTORY, memory=None)), ran(2.0, 200)),
    ],
    ids=["known micro-batches", "no plan", "ranks without report", "another plan", "nothing forecast"],
)
def test_a_step_without_a_forecast_that_ranks_followed_does_not_count(
    plan: PlanRecord | None, executions: list[Execution]
) -> None:
    assert count_exceeded([(plan, executions)]).share is None
