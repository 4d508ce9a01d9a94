"""One small step in all its stages, for tests of the store and of the planner."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from harness.services import CLUSTER, MODEL, Loop, count, plain_plan, routed_experts
from relibra.errors import RelibraError
from relibra.planning import Cause, ExecutionReport, Phase, Schedule
from relibra.store import (
    AttemptId,
    EncodedPlan,
    ExpiryCause,
    JobRecord,
    Lease,
    PlanRecord,
    SequenceCounts,
    Store,
    StoreLimits,
)

IDS = [f"seq-{index}" for index in range(8)]
COUNTS_SLE = np.stack([count(routed_experts(index, 5 + index)) for index in range(8)])
SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE))
OTHER_PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE, "another plan", shift=1))
LONG_S = 60.0


def sequence(
    epoch: int, name: str, counts_LE: np.ndarray = COUNTS_SLE[0], *, step: int | None = 1, policies: str = ""
) -> SequenceCounts:
    return SequenceCounts(
        job_id="job", epoch=epoch, step=step, sequence_id=name, counts_LE=counts_LE, policies=policies
    )


def report_all(
    store: Store,
    run: Loop,
    step: int = 1,
    limits: StoreLimits = StoreLimits(),  # noqa: B008
) -> list[RelibraError | None]:
    """Report a step to the current attempt of the job."""
    jobs = run(store.get_jobs(["job"]))
    epoch = jobs["job"].epoch if jobs else 1
    sequences = [sequence(epoch, name, counts_LE, step=step) for name, counts_LE in zip(IDS, COUNTS_SLE, strict=True)]
    return run(store.put_counts(sequences, limits))


def execution_report(rank: int, step: int = 1, **more: Any) -> ExecutionReport:
    """Return the report of a rank that had no plan."""
    plain: dict[str, Any] = {
        "step": step,
        "phase": Phase.UPDATE,
        "ep_group": 0,
        "ep_rank": rank,
        "applied": None,
        "reason": "no plan",
        "causes": (Cause.UNSCHEDULED,),
        "realised_load_ML": np.ones((2, MODEL.num_layers), dtype=np.int64),
    }
    return ExecutionReport(**plain | more)


async def published_plans(store: Store, job: AttemptId) -> list[PlanRecord]:
    """Return the plans of an attempt whose full data is kept, in the order in which they were published."""
    plans = [step.plan for step in await store.list_steps(job) if step.plan is not None]
    return sorted(plans, key=lambda plan: plan.id)


def lease_of(store: Store, run: Loop, job: JobRecord, step: int, lease_s: float = LONG_S) -> Lease:
    """Submit the schedule of a step, and take the lease on solving it."""
    run(store.put_schedule(job, step, IDS, SCHEDULE))
    lease = run(store.take_lease(job.job_id, lease_s))
    assert lease is not None
    assert lease.step == step
    return lease


def publish(store: Store, run: Loop, job: JobRecord, step: int, plan: EncodedPlan = PLAN) -> int:
    """Take a step from its schedule to its plan; return the version of the plan."""
    return run(store.publish_plan(lease_of(store, run, job, step), plan)).version


def expire(store: Store, run: Loop, job: JobRecord, steps: Iterable[int]) -> list[int]:
    """Let steps expire, whatever their age; return those that did."""
    measured, _ = run(store.measure_steps(job))
    wanted = set(steps)
    causes = {each: ExpiryCause.STEPS for each in measured if each.step in wanted}
    return run(store.expire_steps(job, causes, time.time()))
