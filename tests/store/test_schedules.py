import dataclasses

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, LONG_S, OTHER_PLAN, PLAN, SCHEDULE, report_all, sequence
from relibra.errors import Conflict, LimitExceeded, LostLease, NotFound, StaleEpoch
from relibra.planning import PlanId, Schedule
from relibra.planning.plan import Level
from relibra.store import JobRecord, PendingStep, StepState, Store, StoreLimits


def publish(store: Store, run: Loop, level: Level) -> PlanId:
    """Publish a plan of the step that waits, made at this level."""
    plan = dataclasses.replace(PLAN if level is Level.STEP else OTHER_PLAN, level=level)
    plan_id: PlanId = run(store.publish_plan(run(store.take_lease("job", LONG_S)), plan))
    return plan_id


def test_a_schedule_is_kept_once_and_makes_the_step_pending(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    with pytest.raises(Conflict, match="has another schedule"):
        run(store.put_schedule(job, 1, IDS, Schedule.round_robin(8, 4, CLUSTER)))
    sequence_ids, schedule, level = run(store.get_schedule(job, 1))
    assert (sequence_ids, level) == (IDS, Level.MICRO_BATCHES)
    np.testing.assert_array_equal(schedule.row_S, SCHEDULE.row_S)
    (pending,), _ = run(store.pending_steps())
    assert (pending.job_id, pending.step) == ("job", 1)
    assert run(store.get_step(job, 1)).state is StepState.QUEUED
    with pytest.raises(NotFound, match="step 2 of job 'job' has no schedule"):
        run(store.get_schedule(job, 2))


def test_a_schedule_that_says_more_replaces_the_sequences_and_their_plan(
    store: Store, run: Loop, job: JobRecord
) -> None:
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, None))
    assert run(store.get_schedule(job, 1)) == (IDS, None, Level.STEP)
    of_sequences = publish(store, run, Level.STEP)
    assert run(store.get_step(job, 1)).state is StepState.PLANNED
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    assert run(store.get_step(job, 1)).state is StepState.QUEUED
    assert run(store.get_schedule(job, 1))[2] is Level.MICRO_BATCHES
    with pytest.raises(Conflict, match="has another schedule"):
        run(store.put_schedule(job, 1, IDS, None))
    assert publish(store, run, Level.MICRO_BATCHES).version > of_sequences.version


def test_S4_a_plan_that_knew_less_is_dropped_if_a_schedule_came_during_its_solve(
    store: Store, run: Loop, job: JobRecord
) -> None:
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, None))
    lease = run(store.take_lease("job", LONG_S))
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    with pytest.raises(LostLease, match="got a schedule that says more"):
        run(store.publish_plan(lease, dataclasses.replace(PLAN, level=Level.STEP)))
    assert run(store.get_step(job, 1)).plan is None
    publish(store, run, Level.MICRO_BATCHES)


def test_what_a_sequence_is_called_does_not_pass_for_a_level(store: Store, run: Loop, job: JobRecord) -> None:
    ids = ['{"level": "history"', *IDS[1:]]
    run(store.put_schedule(job, 1, ids, SCHEDULE))
    assert run(store.get_schedule(job, 1))[2] is Level.MICRO_BATCHES
    (late,) = run(store.put_counts([sequence(job.epoch, "late")]))
    assert isinstance(late, Conflict)


def test_pending_steps_of_all_jobs_come_longest_waiting_first(store: Store, run: Loop, job: JobRecord) -> None:
    another = run(store.register_job("another", MODEL, CLUSTER, PARAMS))
    for each, step in ((job, 7), (another, 1), (job, 2)):
        run(store.put_schedule(each, step, IDS, SCHEDULE))
    found: list[PendingStep] = run(store.pending_steps())[0]
    assert [(each.job_id, each.step) for each in found] == [("job", 7), ("another", 1), ("job", 2)]


def test_S4_a_schedule_of_an_older_epoch_is_refused(store: Store, run: Loop, job: JobRecord) -> None:
    with pytest.raises(StaleEpoch, match="so its call is refused"):
        run(store.put_schedule(dataclasses.replace(job, epoch=job.epoch - 1), 1, IDS, SCHEDULE))
    assert run(store.pending_steps()) == ([], {})


def test_S7_no_more_steps_wait_than_the_limit(store: Store, run: Loop, job: JobRecord) -> None:
    limits = StoreLimits(max_open_steps=1)
    run(store.put_schedule(job, 1, IDS, SCHEDULE, limits))
    with pytest.raises(LimitExceeded, match="1 steps of job 'job' wait"):
        run(store.put_schedule(job, 2, IDS, SCHEDULE, limits))
    run(store.put_schedule(job, 1, IDS, SCHEDULE, limits))
