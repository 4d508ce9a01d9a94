"""The state of a job and its reason."""

import re
from dataclasses import replace

import pytest

from harness.executed_plan import EXECUTION, NOW, PLAN
from relibra.planning import Cause, Phase
from relibra.planning.execution import Execution
from relibra.planning.plan import Level
from relibra.status.balance import Balance, Obstacle
from relibra.status.health import JobState, judge_health, write_duration
from relibra.store import StepRecord

COLLECTING = StepRecord(step=8, num_sequences=12, policies={}, submitted_at=None, plan=None, failure=None)
PLANNED = replace(COLLECTING, step=7, plan=PLAN)
UNSCHEDULED = replace(COLLECTING, step=7, num_sequences=0)
FORESEEN = replace(UNSCHEDULED, step=8, plan=replace(PLAN, step=8), level=Level.HISTORY)


@pytest.mark.parametrize(
    ("steps", "executed", "state", "words"),
    [
        ([], [], JobState.WAITING, "no step"),
        ([COLLECTING], [], JobState.WAITING, "12 sequences"),
        ([COLLECTING, PLANNED], [], JobState.WELL, "step 8 is collecting, 12 sequences"),
        ([PLANNED], [], JobState.WELL, "1.800 to 1.020"),
        ([PLANNED], [EXECUTION], JobState.WELL, "step 7: imbalance .* was 1.020; .* 1.800 without relibra"),
        (
            [FORESEEN, UNSCHEDULED],
            [replace(EXECUTION, num_applied=0, intended={Cause.UNSCHEDULED: 4}, applied=None, imbalance=1.8)],
            JobState.WELL,
            "4 of 4 ranks kept what they had, because nobody scheduled the step",
        ),
        ([replace(COLLECTING, failure="no load"), PLANNED], [], JobState.FAILING, "step 8 cannot be planned: no load"),
        ([replace(COLLECTING, submitted_at=NOW - 31), PLANNED], [], JobState.FAILING, "is a planner running"),
        ([replace(COLLECTING, submitted_at=NOW - 1), PLANNED], [], JobState.WELL, "step 8 is queued"),
        ([replace(COLLECTING, submitted_at=NOW - 1, is_leased=True), PLANNED], [], JobState.WELL, "step 8 is solving"),
        (
            [replace(COLLECTING, submitted_at=NOW - 31, is_leased=True), PLANNED],
            [],
            JobState.FAILING,
            "has waited 31 s for its plan: it is being solved",
        ),
        ([PLANNED, replace(COLLECTING, step=3, failure="old")], [], JobState.WELL, "step 7"),
        (
            [PLANNED],
            [replace(EXECUTION, num_reports=3, num_applied=3, missing=((0, 2),))],
            JobState.ATTENTION,
            "missing: rank 2$",
        ),
        (
            [PLANNED],
            [replace(EXECUTION, num_reports=3, num_applied=3, missing=((1, 2),), num_ep_groups=2)],
            JobState.ATTENTION,
            "missing: rank 2 of group 1",
        ),
        ([PLANNED], [replace(EXECUTION, imbalance=1.3)], JobState.ATTENTION, "1.300 .* 1.020 was planned"),
    ],
)
def test_a_state_has_its_reason(
    steps: list[StepRecord], executed: list[Execution], state: JobState, words: str
) -> None:
    health = judge_health(steps, PLANNED if executed else None, executed, Balance(), NOW, applied=PLAN)
    assert health.verdict is state
    assert re.search(words, health.reason), health.reason


def planned(step: int, published_at: float) -> StepRecord:
    return replace(PLANNED, step=step, plan=replace(PLAN, step=step, published_at=published_at))


EVERY_40_S = [planned(step, NOW - 900 - 40 * (7 - step)) for step in (7, 6, 5, 4)]


@pytest.mark.parametrize(
    ("newest", "executed_step", "executed", "words"),
    [
        ([COLLECTING], 7, [EXECUTION], "step 8 has 12 sequences but no schedule"),
        ([], 6, [EXECUTION], "step 7 is planned but no rank has reported"),
        (
            [],
            7,
            [replace(EXECUTION, num_reports=3, num_applied=3, missing=((0, 2),))],
            "step 7: .* missing: rank 2; check the logs",
        ),
        ([], 7, [replace(EXECUTION, phase=Phase.RECOMPUTE)], "no rank has reported phase update of step 7"),
    ],
)
def test_a_stalled_job_says_where_it_stands(
    newest: list[StepRecord], executed_step: int, executed: list[Execution], words: str
) -> None:
    steps = [*newest, *EVERY_40_S]
    health = judge_health(steps, planned(executed_step, 0), executed, Balance(), NOW)
    assert health.verdict is JobState.STALLED
    assert health.reason.startswith("no plan for 15 min (usually one every 40 s): ")
    assert re.search(words, health.reason), health.reason


@pytest.mark.parametrize("phases", [[Phase.UPDATE], [Phase.RECOMPUTE, Phase.UPDATE]])
def test_a_job_that_may_have_ended_is_not_stalled(phases: list[Phase]) -> None:
    executed = [replace(EXECUTION, phase=phase) for phase in phases]
    health = judge_health(EVERY_40_S, EVERY_40_S[0], executed, Balance(), NOW + 86_400)
    assert health.verdict is JobState.WAITING
    assert re.search("^no plan for 24 h .*all ranks reported step 7, .* did the job die", health.reason)
    # A plan from history is there as soon as the step before it ends.
    health = judge_health([FORESEEN, *EVERY_40_S], EVERY_40_S[0], executed, Balance(), NOW + 86_400)
    assert (health.verdict, "all ranks reported step 7" in health.reason) == (JobState.WAITING, True)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (EVERY_40_S[:2], "too few steps to tell what is usual"),
        ([planned(step, NOW - 300 - 100 * (7 - step)) for step in (7, 6, 5)], "three times as long as usual"),
        ([planned(step, NOW - 100 - (7 - step)) for step in (7, 6, 5)], "a hundred times, and not long"),
        ([replace(COLLECTING, submitted_at=NOW - 60), *EVERY_40_S], "a planner is missing, which is worse"),
    ],
)
def test_a_job_is_not_called_stalled_too_early(steps: list[StepRecord], why: str) -> None:
    assert judge_health(steps, None, [], Balance(), NOW).verdict is not JobState.STALLED, why


UNBALANCED = Balance(
    since_step=5, obstacle=Obstacle.FELL_BACK, reason="2 of 4 ranks fell back", num_executed=9, num_without_plan=3
)


def test_S9_a_job_whose_steps_run_without_plans_is_not_well() -> None:
    health = judge_health([PLANNED], PLANNED, [EXECUTION], UNBALANCED, NOW)
    assert health.verdict is JobState.UNBALANCED
    assert health.reason == (
        "not balancing since step 5, because 2 of 4 ranks fell back; 3 of the last 9 steps ran without a plan"
    )


def test_S9_a_job_without_any_kept_step_says_that_its_steps_are_refused() -> None:
    health = judge_health([], None, [], replace(UNBALANCED, num_without_plan=0), NOW)
    assert health.verdict is JobState.UNBALANCED
    assert health.reason == "not balancing since step 5, because 2 of 4 ranks fell back"


def test_S9_a_job_that_balances_again_says_how_many_steps_had_no_plan() -> None:
    health = judge_health([PLANNED], PLANNED, [EXECUTION], Balance(num_executed=9, num_without_plan=3), NOW)
    assert health.verdict is JobState.ATTENTION
    assert health.reason == "3 of the last 9 steps ran without a plan; the newest one used its plan"


def test_a_missing_planner_is_worse_than_steps_without_plans() -> None:
    waiting = replace(COLLECTING, submitted_at=NOW - 31)
    health = judge_health([waiting, PLANNED], PLANNED, [EXECUTION], UNBALANCED, NOW)
    assert health.verdict is JobState.FAILING
    assert health.reason.endswith("is a planner running?; 3 of the last 9 steps ran without a plan")


@pytest.mark.parametrize(
    ("time_s", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (1e6, "12 d")]
)
def test_durations_are_short(time_s: float, text: str) -> None:
    assert write_duration(time_s) == text


def test_N1_steps_that_run_plain_because_plans_are_not_faster_ask_for_attention_and_raise_no_alarm() -> None:
    chosen = Balance(
        since_step=5, obstacle=Obstacle.NOT_FASTER, reason="step 7: planned steps took 1.030 times as long"
    )
    health = judge_health([PLANNED], PLANNED, [EXECUTION], chosen, NOW)
    assert health.verdict is JobState.ATTENTION
    assert health.reason == "not balancing since step 5, because step 7: planned steps took 1.030 times as long"
