"""Calls that wait for steps, on a real store whose reads are counted."""

import asyncio
from typing import Any

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, PLAN, SCHEDULE
from relibra.planner.plan_notifier import PlanNotifier, ShuttingDown
from relibra.planner.serve import step_watch
from relibra.planner.serve.step_watch import StepWatch
from relibra.store import JobRecord, StepRecord, Store


class Looks:
    """A store that counts how often a step is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num = 0

    async def get_step(self, job: JobRecord, step: int) -> StepRecord:
        self.num += 1
        return await self._store.get_step(job, step)


class Waiting:
    """A job with a scheduled step that calls wait for, until `publish`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.notifier = PlanNotifier()
        self.looks = Looks(store)
        self.watch = StepWatch(self.looks, self.notifier)  # type: ignore[arg-type]

    async def start(self, num_calls: int, wait_s: float = 60.0) -> list[asyncio.Task[StepRecord]]:
        self.job = await self.store.register_job("job", MODEL, CLUSTER, PARAMS)
        await self.store.put_schedule(self.job, 1, IDS, SCHEDULE)
        calls = [asyncio.create_task(self.watch.wait(self.job, 1, wait_s)) for _ in range(num_calls)]
        while self.looks.num < 2:  # the look of all calls, and the first one of those that wait
            await self.store.ping()  # a round trip, during which the calls go on
        return calls

    async def publish(self) -> None:
        lease = await self.store.take_lease("job", 60)
        assert lease is not None
        await self.store.publish_plan(lease, PLAN)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a ring makes the watch look again."""
    monkeypatch.setattr(step_watch, "LOOK_INTERVAL_S", 3600.0)


@pytest.mark.usefixtures("patient")
def test_S6_all_calls_share_each_look_and_get_the_plan_with_the_ring(store: Store, run: Loop) -> None:
    async def scenario() -> None:
        waiting = Waiting(store)
        calls = await waiting.start(20)
        before = waiting.looks.num
        await waiting.publish()
        waiting.notifier.ring("job")
        records = await asyncio.gather(*calls)
        assert all(each.plan is not None for each in records)
        assert waiting.looks.num == before + 1

    run(scenario())


def test_a_plan_of_another_planner_is_found_without_a_ring(store: Store, run: Loop) -> None:
    async def scenario() -> None:
        waiting = Waiting(store)
        (call,) = await waiting.start(1)
        await waiting.publish()
        assert (await call).plan is not None

    run(scenario())


@pytest.mark.usefixtures("patient")
def test_a_call_ends_after_its_wait_and_those_that_hang_up_cancel_nobody(store: Store, run: Loop) -> None:
    async def scenario() -> None:
        waiting = Waiting(store)
        first, second = await waiting.start(2)
        short = await waiting.watch.wait(waiting.job, 1, 0.01)
        assert short.plan is None
        assert short.failure is None
        first.cancel()
        await asyncio.wait({first})
        await waiting.publish()
        waiting.notifier.ring("job")
        assert (await second).plan is not None

    run(scenario())


@pytest.mark.usefixtures("patient")
def test_L4_a_call_that_waits_is_refused_when_the_planner_drains(store: Store, run: Loop) -> None:
    async def scenario() -> Any:
        waiting = Waiting(store)
        (call,) = await waiting.start(1)
        waiting.notifier.drain()
        with pytest.raises(ShuttingDown, match="shutting down"):
            await call

    run(scenario())
