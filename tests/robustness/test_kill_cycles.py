"""Planner and Redis are killed again and again at random times; nothing that was acknowledged is lost."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest

from harness.robustness.history import Event, violations
from harness.robustness.world import PATIENT_S, Planner, World, register, take_step
from harness.services import MODEL, Loop, eventually, routed_experts
from relibra.rollout import RolloutReporter
from relibra.store import Store

pytestmark = [pytest.mark.robustness, pytest.mark.integration, pytest.mark.timeout(3600)]

NUM_CYCLES = int(os.environ.get("RELIBRA_KILL_CYCLES", "3"))
MAX_WAITING = 400
"""Sequences that are sent and not answered: so many that some are always under way when a process dies."""


class Stream:
    """Reports sequences without end, for one step of its own job."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._epoch = register(planner, "stream")
        self._reporter = RolloutReporter(planner.address, "stream", num_experts=MODEL.num_experts)
        self._num_handed = self._num_told = 0

    def report_until(self, stop: threading.Event) -> None:
        """Report until stopped, with a bound on the sequences that wait."""
        routed_TLK = routed_experts(0, 6)
        while not stop.is_set():
            if self._reporter.num_waiting < MAX_WAITING:
                assert self._reporter.report(1, f"seq-{self._num_handed}", routed_TLK)
                self._num_handed += 1
            else:
                stop.wait(0.005)

    def tell(self) -> int:
        """Record the sequences that are acknowledged by now, which are the oldest ones; return how many there are."""
        num_told, asked_after = self._num_told, len(self._planner.history)
        self._num_told = max(num_told, self._num_handed - self._reporter.num_waiting)
        ids = [f"seq-{index}" for index in range(num_told, self._num_told)]
        self._planner.history.tell(
            Event(
                kind="acknowledged",
                asked_after=asked_after,
                job_id="stream",
                epoch=self._epoch,
                step=1,
                sequence_ids=ids,
            )
        )
        return self._num_told

    def close(self) -> None:
        """Stop reporting, and wait until everything under way is acknowledged."""
        self._reporter.flush(timeout_s=PATIENT_S)
        self.tell()
        self._reporter.close()


@contextmanager
def traffic(planner: Planner) -> Iterator[Stream]:
    """The load: two jobs that take steps, and a stream of reports."""
    stop, stream = threading.Event(), Stream(planner)

    def drive(job_id: str) -> None:
        for step in count(1):
            if stop.is_set():
                return
            take_step(planner, step, job_id)

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(drive, "job"), pool.submit(drive, "other"), pool.submit(stream.report_until, stop)]
        try:
            yield stream
        finally:
            stop.set()
        for each in running:
            each.result(timeout=PATIENT_S)
    stream.close()


@pytest.mark.long
def test_L3_nothing_acknowledged_is_lost_in_kill_cycles(world: World, round_number: int) -> None:
    planner = world.start_planner(
        RELIBRA_RETAINED_STEPS="1000000",
        RELIBRA_MAX_OPEN_STEPS="64",
        RELIBRA_MAX_INGEST_BYTES_PER_S="100000",
        RELIBRA_MAX_SEQUENCES="10000000",
    )
    rng, slowest_s = Random(round_number), 0.0
    quiet_s = measure_quiet_recovery(world, planner)
    with world.fault(f"{NUM_CYCLES} kills of planner, Redis or both, at random", "L2 L3 S3 S4") as clock:
        with traffic(planner) as stream:
            for _ in range(NUM_CYCLES):
                target = len(world.history) + rng.randrange(1, 12)
                eventually(lambda target=target: len(world.history) >= target, within_s=PATIENT_S)
                # The process dies at a random moment between two answers.
                threading.Event().wait(rng.uniform(0, 0.05))
                stream.tell()
                kill_and_start_again(world, planner, rng.choice(("planner", "redis", "both")))
                clock.restart()
                # Both jobs may have had a plan that they had not seen; the third one was solved since.
                target = world.history.num_planned + 3
                eventually(lambda target=target: world.history.num_planned >= target, within_s=PATIENT_S)
                clock.stop()
                slowest_s = max(slowest_s, clock.recovery_s)
        tell_what_is_kept(world)
        told = world.history.read()
        assert violations(told) == []
        clock.recovery_s = slowest_s
        num_acknowledged = len({(each.job_id, each.step, name) for each in told for name in each.sequence_ids})
        num_planned = len({(each.job_id, each.step) for each in told if each.kind == "planned"})
        clock.figures = (
            f"{num_acknowledged} sequences acknowledged and {num_planned} plans seen, 0 lost; "
            f"the slowest recovery took {slowest_s / quiet_s:.1f} times as long as a quiet one ({quiet_s:.1f} s)"
        )


def measure_quiet_recovery(world: World, planner: Planner) -> float:
    """Return how long it takes from the restart of planner and Redis to the plan of a step, without other traffic."""
    take_step(planner, 1, "quiet")
    kill_and_start_again(world, planner, "both")
    started_at = time.monotonic()
    take_step(planner, 2, "quiet")
    return time.monotonic() - started_at


def kill_and_start_again(world: World, planner: Planner, victim: str) -> None:
    """Send SIGKILL, and start again on the data that is left."""
    if victim != "planner":
        world.redis.kill()
    if victim != "redis":
        planner.kill()
    if victim != "planner":
        world.redis.recover()
    if victim != "redis":
        planner.start()


def tell_what_is_kept(world: World) -> None:
    """Record what the store holds for every step of every job."""
    asked_after = len(world.history)

    async def look() -> list[Event]:
        async with Store.open(world.redis.url) as store:
            return [
                Event(
                    kind="kept",
                    asked_after=asked_after,
                    job_id=job.job_id,
                    epoch=job.epoch,
                    step=record.step,
                    sequence_ids=sorted(await store.reported_sequences(job, record.step)),
                    version=record.plan.id.version if record.plan else 0,
                    digest=record.plan.digest.hex() if record.plan else "",
                )
                for job in (await store.get_jobs(await store.job_ids())).values()
                for record in await store.list_steps(job, limit=1_000_000)
            ]

    with Loop() as run:
        for event in run(look()):
            world.history.tell(event)
