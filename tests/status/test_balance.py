"""Since when a job has not been balanced, and why."""

import re
from dataclasses import replace

import pytest

from harness.executed_plan import EXECUTION as APPLIED
from harness.executed_plan import PLAN
from relibra.planning import Cause
from relibra.status.balance import GLANCE_STEPS, NUM_JUDGED, Obstacle, judge_balance
from relibra.store import Refusal, Refused, StepRecord

FELL_BACK = replace(APPLIED, num_applied=2, fallbacks={Cause.LATE: 2, Cause.STALE: 1})
REFUSAL = Refusal(what=Refused.SCHEDULE, since_step=5, step=8, error="Conflict", text="step 8 has expired", at=1001.0)


def planned(step: int) -> StepRecord:
    return StepRecord(step=step, num_sequences=9, policies={}, submitted_at=999.0, plan=PLAN, failure=None)


def collecting(step: int) -> StepRecord:
    return replace(planned(step), plan=None, submitted_at=None)


def test_a_job_whose_ranks_apply_their_plans_is_balanced() -> None:
    balance = judge_balance([planned(7)], [(planned(7), [APPLIED])], [])
    assert (balance.since_step, balance.obstacle, balance.share) == (None, None, None)
    assert balance.num_executed == 1


def test_S9_a_row_of_fallbacks_counts_from_its_first_step() -> None:
    done = [
        (planned(9), [APPLIED, FELL_BACK]),
        (planned(8), [FELL_BACK]),
        (planned(7), [APPLIED]),
        (planned(6), [FELL_BACK]),
    ]
    balance = judge_balance([planned(9)], done, [])
    assert (balance.since_step, balance.obstacle) == (8, Obstacle.FELL_BACK)
    assert re.search(r"step 9: 2 of 4 ranks .*\(2 late, 1 stale\)", balance.reason)
    assert balance.share == "3 of the last 4 steps ran without a plan"


@pytest.mark.parametrize(
    ("step", "obstacle", "words"),
    [
        (collecting(7), Obstacle.UNSCHEDULED, "9 sequences and no schedule"),
        (replace(collecting(7), submitted_at=1.0), Obstacle.UNSOLVED, "was not ready"),
        (replace(collecting(7), failure="no load"), Obstacle.UNPLANNABLE, "cannot be planned: no load"),
        (planned(7), Obstacle.FELL_BACK, "kept the last plan"),
        (replace(collecting(7), num_sequences=0), Obstacle.FELL_BACK, "kept the last plan"),
    ],
)
def test_S9_a_step_that_ran_without_a_plan_says_why(step: StepRecord, obstacle: Obstacle, words: str) -> None:
    balance = judge_balance([step], [(step, [FELL_BACK])], [])
    assert (balance.since_step, balance.obstacle) == (7, obstacle)
    assert words in balance.reason


@pytest.mark.parametrize(
    ("refusal", "obstacle"),
    [
        (REFUSAL, Obstacle.REFUSED_SCHEDULE),
        (replace(REFUSAL, what=Refused.SEQUENCES), Obstacle.REFUSED_SEQUENCES),
        (replace(REFUSAL, what=Refused.REPORTS), Obstacle.REFUSED_REPORTS),
    ],
)
def test_S9_refused_steps_are_not_balanced(refusal: Refusal, obstacle: Obstacle) -> None:
    balance = judge_balance([planned(7)], [(planned(7), [APPLIED])], [refusal])
    assert (balance.since_step, balance.obstacle) == (5, obstacle)
    assert "step 8 has expired" in balance.reason


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(replace(REFUSAL, what=Refused.SEQUENCES, step=7), id="one sequence of a step with others"),
        pytest.param(
            replace(REFUSAL, what=Refused.SEQUENCES, since_step=5, step=5),
            id="a straggler's sequence for an expired step",
        ),
        pytest.param(replace(REFUSAL, what=Refused.REPORTS, step=3), id="a straggler's report for an expired step"),
    ],
)
def test_a_refusal_that_leaves_its_step_planned_does_not_count(refusal: Refusal) -> None:
    assert judge_balance([planned(7)], [(planned(7), [APPLIED])], [refusal]).since_step is None


def test_S9_a_job_that_repeats_steps_is_no_straggler() -> None:
    refusal = replace(REFUSAL, what=Refused.SEQUENCES, since_step=2, step=3)
    balance = judge_balance([planned(7)], [(planned(7), [APPLIED])], [refusal])
    assert (balance.since_step, balance.obstacle) == (2, Obstacle.REFUSED_SEQUENCES)


def test_steps_that_nobody_scheduled_are_balanced_by_earlier_plans_and_before_the_first_one_nothing_is_wrong() -> None:
    step = replace(collecting(7), num_sequences=0)
    nothing_yet = replace(APPLIED, num_applied=0, intended={Cause.UNSCHEDULED: 4}, applied=None)
    balance = judge_balance([step], [(step, [APPLIED]), (replace(step, step=6), [nothing_yet])], [])
    assert (balance.since_step, balance.share, balance.num_executed) == (None, None, 2)
    assert judge_balance([step], [(step, [replace(nothing_yet, intended={Cause.UNSCHEDULED: 3})])], []).since_step == 7


def test_N1_steps_that_run_plain_count_from_their_first_one_with_what_was_measured() -> None:
    chosen = replace(
        APPLIED, num_applied=0, applied=None, intended={Cause.NOT_FASTER: 4}, reasons=("planned steps took longer",)
    )
    measured = replace(chosen, intended={Cause.MEASURING: 4})
    steps = [(planned(9), [chosen]), (planned(8), [chosen]), (planned(7), [measured]), (planned(6), [APPLIED])]
    balance = judge_balance([planned(9)], steps, [])
    assert (balance.since_step, balance.obstacle) == (8, Obstacle.NOT_FASTER)
    assert balance.reason == "step 9: planned steps took longer"
    assert balance.num_without_plan == 0, "no rank fell back"
    assert judge_balance([planned(7)], steps[2:], []).since_step is None, "a trial is no obstacle"


@pytest.mark.parametrize("collecting_ahead", [0, 16])
def test_S9_a_job_whose_ranks_never_report_is_not_balanced(collecting_ahead: int) -> None:
    ahead = [collecting(step) for step in range(7 + collecting_ahead, 7, -1)]
    steps = [*ahead, *(planned(step) for step in range(7, 3, -1))]
    assert len(steps) <= GLANCE_STEPS
    balance = judge_balance(steps, [], [])
    assert (balance.since_step, balance.obstacle) == (4, Obstacle.UNREPORTED)
    assert balance.reason.startswith("no rank has reported steps 4 to 6, although they have plans")
    assert judge_balance(steps[:-1], [], []).since_step is None, "training may lag behind the plans"


def test_S9_a_job_whose_ranks_stop_reporting_is_not_balanced() -> None:
    steps = [planned(step) for step in range(17, 7, -1)]
    balance = judge_balance(steps, [(planned(8), [APPLIED])], [])
    assert (balance.since_step, balance.obstacle) == (9, Obstacle.UNREPORTED)
    assert balance.num_executed == 1
    assert judge_balance(steps[1:], [(planned(8), [APPLIED])], []).since_step is None


def test_only_the_newest_executed_steps_are_counted() -> None:
    steps = [planned(step) for step in range(GLANCE_STEPS, 0, -1)]
    done = [(step, [APPLIED if step.step > GLANCE_STEPS - NUM_JUDGED else FELL_BACK]) for step in steps]
    balance = judge_balance(steps, done, [])
    assert (balance.num_executed, balance.share) == (NUM_JUDGED, None)


def test_S9_steps_that_ran_without_plans_are_seen_behind_rollouts_far_ahead() -> None:
    steps = [*(collecting(step) for step in range(23, 7, -1)), planned(7)]
    balance = judge_balance(steps, [(planned(7), [FELL_BACK])], [])
    assert (balance.since_step, balance.obstacle) == (7, Obstacle.FELL_BACK)


def test_S9_a_driver_that_never_submits_a_schedule_is_noticed() -> None:
    steps = [collecting(step) for step in range(14, 2, -1)]
    balance = judge_balance(steps, [], [])
    assert (balance.since_step, balance.obstacle) == (3, Obstacle.UNSCHEDULED)
    assert judge_balance(steps[:-1], [], []).since_step is None
