"""Many steps leave nothing behind: memory stays flat."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pytest
from redis import Redis

from harness.robustness.world import PATIENT_S, SCHEDULE, Planner, World, resident_kib, solvers_of
from harness.services import CLUSTER, MODEL, PARAMS, eventually, routed_experts
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration, pytest.mark.timeout(3600)]

NUM_STEPS = int(os.environ.get("RELIBRA_SOAK_STEPS", "160"))
NUM_JOBS = 4
RETAINED_STEPS = 8
SUMMARY_KIB = 0.6
"""What stays in Redis of a step."""
SLACK_KIB = 16 << 10
"""The growth between two measurements that an allocator may cause."""


@dataclass(frozen=True)
class Use:
    """The memory of a planner, of its solvers and of Redis."""

    planner_kib: int
    solvers_kib: int
    redis_kib: int
    num_keys: int

    @classmethod
    def of(cls, planner: Planner, redis: "Redis") -> "Use":
        memory = redis.info("memory")
        return cls(
            planner_kib=resident_kib(planner.process.pid),
            solvers_kib=max(map(resident_kib, solvers_of(planner))),
            # The backlog that a primary keeps for its replicas fills up to a fixed size, whatever is written.
            redis_kib=(memory["used_memory"] - memory["mem_replication_backlog"]) >> 10,
            num_keys=redis.dbsize(),
        )


def take_steps(planner: Planner, job_id: str, first: int, last: int) -> None:
    """Take steps of one job with one client and one reporter, as the driver of a job does."""
    with (
        PlannerClient(planner.address, timeout_s=60) as client,
        RolloutReporter(planner.address, job_id, num_experts=MODEL.num_experts) as reporter,
    ):
        client.register_job(job_id, MODEL, CLUSTER, PARAMS)
        ids = [f"seq-{index}" for index in range(8)]
        for step in range(first, last):
            for index, sequence_id in enumerate(ids):
                assert reporter.report(step, sequence_id, routed_experts(index, 5 + index))
            reporter.flush(timeout_s=PATIENT_S)
            client.submit_schedule(job_id, step, ids, SCHEDULE)
            client.fetch_plan(job_id, step, MODEL, wait_s=PATIENT_S)


def old_steps_have_expired(redis: "Redis") -> bool:
    """Return whether only the retained steps have keys: the planner lets the others expire after a plan is out."""
    steps = {key.rpartition(b":")[0] for key in redis.scan_iter("*:step:*", count=1000)}
    return len(steps) <= NUM_JOBS * RETAINED_STEPS


@pytest.mark.long
def test_S7_memory_is_flat_however_many_steps_are_taken(world: World) -> None:
    planner = world.start_planner(RELIBRA_RETAINED_STEPS=str(RETAINED_STEPS))
    bounds = [1 + NUM_STEPS // NUM_JOBS * quarter // 4 for quarter in range(5)]
    with world.fault(f"{NUM_STEPS} steps of {NUM_JOBS} jobs", "S7") as clock, world.redis.client() as redis:
        uses = []
        for first, last in pairwise(bounds):
            with ThreadPoolExecutor(NUM_JOBS) as pool:
                for each in [pool.submit(take_steps, planner, f"job-{job}", first, last) for job in range(NUM_JOBS)]:
                    each.result()
            eventually(lambda: old_steps_have_expired(redis))
            uses.append(Use.of(planner, redis))
        clock.stop()
        # From the second quarter on, every job has as many steps as the store retains.
        _, before, *_, after = uses
        clock.figures = (
            f"planner {before.planner_kib >> 10} -> {after.planner_kib >> 10} MiB, "
            f"solver {before.solvers_kib >> 10} -> {after.solvers_kib >> 10} MiB, "
            f"Redis {before.redis_kib} -> {after.redis_kib} KiB, {before.num_keys} -> {after.num_keys} keys"
        )
        assert after.num_keys <= before.num_keys, clock.figures
        assert after.redis_kib <= before.redis_kib * 1.1 + NUM_STEPS * SUMMARY_KIB, clock.figures
        assert after.planner_kib <= before.planner_kib + SLACK_KIB, clock.figures
        assert after.solvers_kib <= before.solvers_kib + SLACK_KIB, clock.figures
