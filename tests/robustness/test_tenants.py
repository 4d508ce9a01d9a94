"""Jobs share a planner with a job that floods it, with a large job, and with many others."""

import contextlib
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from harness.reports import report_one
from harness.robustness.world import (
    PATIENT_S,
    Planner,
    World,
    fetch,
    hold_solve,
    let_go,
    prepare_step,
    stop_solvers,
    submit_step,
)
from harness.services import CLUSTER, MODEL, Loop, count, eventually, routed_experts
from harness.step_samples import published_plans
from relibra.planner.serve.routing_service import CREDIT_SEQUENCES
from relibra.planning import Cluster, Model, Schedule
from relibra.rollout import RolloutReporter
from relibra.store import PlanRecord, Store
from relibra.store.address import open_redis
from relibra.store.keys import JobKeys
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.routing import open_stream

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

QUOTA_BYTES_PER_S = 10_000
NUM_FLOODERS = 32
NUM_JOBS = 16
LARGE_MODEL = Model(num_layers=4, num_experts=512, top_k=4)
LARGE_CLUSTER = Cluster(num_nodes=64, gpus_per_node=8, redundant_slots=1)
LARGE_IDS = [f"seq-{index}" for index in range(2 * LARGE_CLUSTER.num_ranks)]
LARGE_STEPS = (1, 2, 3)
LONG_S = "600"
"""A lease that a busy machine does not lose."""


def published(world: World, job_ids: list[str]) -> list[tuple[str, PlanRecord]]:
    """Return all plans of some jobs in the order in which they were published."""

    async def look() -> list[tuple[str, PlanRecord]]:
        async with Store.open(world.redis.url) as store:
            jobs = (await store.get_jobs(job_ids)).values()
            return [(job.job_id, each) for job in jobs for each in await published_plans(store, job)]

    with Loop() as run:
        return sorted(run(look()), key=lambda each: each[1].published_at)


def num_reported(world: World, job_id: str, step: int) -> int:
    """Return how many sequences of a step are stored, whichever server of Redis holds them."""

    async def look() -> int:
        async with Store.open(world.redis.url) as store:
            return len(await store.reported_sequences(await store.get_job(job_id), step))

    with Loop() as run:
        return run(look())


def is_solved_for(world: World, job_id: str) -> bool:
    """Return whether a planner holds the lease of a job, whichever server of Redis stores it."""

    async def look() -> bool:
        async with open_redis(world.redis.url) as redis:
            return bool(await redis.exists(JobKeys(job_id).of("lease")))

    with Loop() as run:
        return run(look())


def timed_step(planner: Planner, step: int, job_id: str) -> tuple[bytes, float]:
    """Take a step; return the digest of its plan and the seconds from schedule to plan."""
    prepare_step(planner, step, job_id)
    started_at = time.monotonic()
    submit_step(planner, step, job_id)
    return fetch(planner, step, job_id).digest, time.monotonic() - started_at


class Flood:
    """A tenant whose workers send as much as the credit of a stream allows, and then do so again on a new stream."""

    def __init__(self, world: World, planner: Planner) -> None:
        with PlannerClient(planner.address) as client:
            self._epoch = client.register_job("flood", MODEL, CLUSTER)
        self._world = world
        self._counts_LE = count(routed_experts(0, 6))
        self._size_bytes = self._report(1, "seq-0000-0000").ByteSize()
        self._num_sent = [0] * NUM_FLOODERS
        self._started_at = time.monotonic()
        self._channel = open_channel(planner.address)
        self._threads = [threading.Thread(target=self._send, args=[worker]) for worker in range(NUM_FLOODERS)]
        for each in self._threads:
            each.start()
        # The first messages cost this process as much as the planner.
        eventually(lambda: sum(self._num_sent) >= NUM_FLOODERS * CREDIT_SEQUENCES)

    def _report(self, ordinal: int, name: str) -> Any:
        return report_one(ordinal, "flood", 1, name, 6, self._counts_LE, epoch=self._epoch)

    def _send(self, worker: int) -> None:
        def requests() -> Iterator[Any]:
            for ordinal in range(1, CREDIT_SEQUENCES + 1):
                self._num_sent[worker] += 1
                yield self._report(ordinal, f"seq-{worker:04}-{self._num_sent[worker]:04}")

        # The loop ends when the channel is closed.
        with contextlib.suppress(grpc.RpcError, ValueError):
            while True:
                assert list(open_stream(self._channel, requests()))[-1].answered_through == CREDIT_SEQUENCES

    def end(self) -> float:
        """Stop, and check that the store kept no more than the quota; return for how many seconds too much was sent.

        Counted is what was sent and not kept, in quotas of a second, so that the speed of the machine does not matter.
        """
        num_sent = sum(self._num_sent)
        num_kept = num_reported(self._world, "flood", 1)
        elapsed_s = time.monotonic() - self._started_at
        self._channel.close()
        for each in self._threads:
            each.join()
        # The quota of one second may be used at once.
        assert 0 < num_kept * self._size_bytes <= QUOTA_BYTES_PER_S * (elapsed_s + 1)
        return (num_sent - num_kept) * self._size_bytes / QUOTA_BYTES_PER_S


@pytest.mark.long
def test_S6_a_flood_of_ten_times_the_quota_changes_neither_bytes_nor_deadline_of_another(world: World) -> None:
    planner = world.start_planner(RELIBRA_MAX_INGEST_BYTES_PER_S=str(QUOTA_BYTES_PER_S))
    timed_step(planner, 0, "victim")
    alone = [timed_step(planner, step, "victim") for step in range(1, 8)]
    with world.fault("a tenant floods ingest at ten times its quota", "S6 S8") as clock:
        flood = Flood(world, planner)
        timed_step(planner, 0, "beside")
        beside = [timed_step(planner, step, "beside") for step in range(1, 8)]
        clock.stop()
        too_much_s = flood.end()
        assert too_much_s >= 10, "the flood was over, or was kept"
        assert [digest for digest, _ in beside] == [digest for digest, _ in alone]
        alone_s, beside_s = (statistics.median(seconds for _, seconds in each) for each in (alone, beside))
        clock.figures = f"{too_much_s:.0f} s of quota wait, step {alone_s * 1e3:.0f} -> {beside_s * 1e3:.0f} ms"
        # The flood is sent by this machine too; a busy one may need a second.
        assert beside_s < max(3 * alone_s, 1.0), clock.figures


@pytest.mark.long
def test_S6_sixteen_jobs_at_once_take_turns(world: World) -> None:
    planner = world.start_planner(RELIBRA_NUM_SOLVERS="1", RELIBRA_LEASE_S=LONG_S)
    job_ids, num_steps = [f"job-{index}" for index in range(NUM_JOBS)], 3
    with world.fault(f"{NUM_JOBS} jobs wait for {num_steps} steps each", "S6") as clock:
        for job_id in job_ids:
            for step in range(1, num_steps + 1):
                prepare_step(planner, step, job_id)
        solvers = stop_solvers(planner)
        for job_id in job_ids:
            for step in range(1, num_steps + 1):
                submit_step(planner, step, job_id)
        started_at = time.time()
        let_go(solvers)
        clock.restart()
        for job_id in job_ids:
            for step in range(1, num_steps + 1):
                fetch(planner, step, job_id)
        clock.stop()
        num_plans = Counter(dict.fromkeys(job_ids, 0))
        last_s = {}
        for job_id, plan in published(world, job_ids):
            num_plans[job_id] += 1
            last_s[job_id] = plan.published_at - started_at
            # One job was solved while the others came to wait, and may be one turn ahead.
            assert max(num_plans.values()) - min(num_plans.values()) <= 2, num_plans
        assert set(num_plans.values()) == {num_steps}
        clock.figures = f"slowest job {max(last_s.values()) / min(last_s.values()):.2f} x the fastest"


@pytest.mark.long
def test_S6_a_512_rank_job_delays_a_small_one_by_one_solve_at_most(world: World) -> None:
    planner = world.start_planner(RELIBRA_NUM_SOLVERS="1", RELIBRA_LEASE_S=LONG_S)
    with world.fault("a small job comes behind three steps of 512 ranks, one solver", "S6") as clock:
        prepare_step(planner, 1, "small")
        prepare_large_steps(planner)
        solvers = stop_solvers(planner)
        submit_large_steps(planner)
        eventually(lambda: is_solved_for(world, "large"))
        submit_step(planner, 1, "small")
        let_go(solvers)
        clock.restart()
        fetch(planner, 1, "small")
        clock.stop()
        with PlannerClient(planner.address) as client:
            client.fetch_plan("large", LARGE_STEPS[-1], LARGE_MODEL, wait_s=PATIENT_S)
        order = [job_id for job_id, _ in published(world, ["large", "small"])]
        assert order == ["large", "small", "large", "large"]


def test_S6_a_solve_that_does_not_end_holds_up_its_own_job_alone(world: World) -> None:
    planner = world.start_planner(RELIBRA_LEASE_S=LONG_S)
    with world.fault("a solve hangs, two solvers", "S6 S7") as clock, world.redis.client() as redis:
        prepare_step(planner, 1, "small")
        hold_solve(world, planner, only_next=True)
        clock.restart()
        submit_step(planner, 1, "small")
        fetch(planner, 1, "small")
        clock.stop()
        assert redis.get("relibra:{job}:lease") == b"1"


def prepare_large_steps(planner: Planner) -> None:
    """Register the large job and report the sequences of its steps."""
    with PlannerClient(planner.address, timeout_s=60) as client:
        client.register_job("large", LARGE_MODEL, LARGE_CLUSTER)
    with RolloutReporter(planner.address, "large", num_experts=LARGE_MODEL.num_experts) as reporter:
        for step in LARGE_STEPS:
            for index, name in enumerate(LARGE_IDS):
                assert reporter.report(step, name, routed_experts(index % 7, 8, LARGE_MODEL))


def submit_large_steps(planner: Planner) -> None:
    """Submit the schedules of all steps of the large job, with two sequences per rank."""
    micro_batch_S, source_rank_S = np.divmod(np.arange(len(LARGE_IDS), dtype=np.int32), LARGE_CLUSTER.num_ranks)
    schedule = Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=micro_batch_S * 0)
    with PlannerClient(planner.address, timeout_s=60) as client:
        for step in LARGE_STEPS:
            client.submit_schedule("large", step, LARGE_IDS, schedule)
