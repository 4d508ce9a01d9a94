"""The pool with real worker processes; the content of the store decides how a solve goes."""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import AsyncIterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually, is_alive
from harness.step_samples import IDS, SCHEDULE, report_all
from relibra.errors import LimitExceeded, UnknownJob
from relibra.planner.settings import PlannerSettings
from relibra.planner.solve import solver, solving
from relibra.planner.solve.packing import PackTask
from relibra.planner.solve.solver import SolverPool
from relibra.planning import Model, PlanParams, Schedule
from relibra.planning.schedule import PackingRules
from relibra.store import EncodedPlan, SequenceCounts, Store

MEMORY_BYTES = 1 << 30


def pool_of(redis_url: str, **settings: Any) -> SolverPool:
    limits = {"solve_timeout_s": 60, "solver_memory_bytes": MEMORY_BYTES, "num_solvers": 1, "num_solver_threads": 1}
    return SolverPool(PlannerSettings.load(redis_url=redis_url, **limits | settings))


def workers(pool: SolverPool) -> list[int]:
    return [process.pid for worker in pool._idle for process in (worker._pool._processes or {}).values()]


@contextlib.asynccontextmanager
async def running(pool: SolverPool, num_warm: int = 1) -> AsyncIterator[SolverPool]:
    """Run a pool that has `num_warm` warm workers."""
    task = asyncio.create_task(pool.run())
    try:
        await has_warm(pool, num_warm)
        yield pool
    finally:
        task.cancel()
        await asyncio.wait({task})
        await pool.close()


async def has_warm(pool: SolverPool, number: int) -> None:
    await asyncio.to_thread(eventually, lambda: pool.num_warm == number)


class WarmWorker:
    """A worker without a process, warm at once."""

    has_worked = is_killed = False

    def __init__(self, *_: int) -> None:
        """A worker takes its limits."""

    async def warm_up(self) -> tuple[int, int]:
        return 7, 0

    def kill(self) -> list[object]:
        self.is_killed = True
        return []


@pytest.mark.long
def test_a_worker_that_dies_or_runs_away_is_replaced_and_harms_nobody(store: Store, run: Loop, redis_url: str) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))

    async def scenario() -> None:
        async with running(pool_of(redis_url, num_solvers=2), 2) as pool:
            first = await pool.solve("job", 1)
            with pytest.raises(UnknownJob):
                await pool.solve("nobody", 1)

            killed = workers(pool)[-1]
            os.kill(killed, signal.SIGSTOP)
            dying = asyncio.create_task(pool.solve("job", 1))
            beside = await asyncio.create_task(pool.solve("job", 1))
            assert beside.digest == first.digest
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(BrokenProcessPool, match=r"was killed .SIGKILL., most often because .* out of memory"):
                await dying
            assert pool.num_warm == 1, "a worker is none before it is warm"
            assert pool.num_missing == 1

            pool._settings = pool._settings.model_copy(update={"solve_timeout_s": 0.2})
            (stopped,) = workers(pool)
            os.kill(stopped, signal.SIGSTOP)
            with pytest.raises(TimeoutError, match=r"longer than 0\.2 s and was killed"):
                await pool.solve("job", 1)
            eventually(lambda: not is_alive(stopped))

            pool._settings = pool._settings.model_copy(update={"solve_timeout_s": 60})
            await has_warm(pool, 2)
            assert pool.num_missing == 0
            assert (await pool.solve("job", 1)).digest == first.digest
            left = workers(pool)
        assert not any(is_alive(pid) for pid in left)

    run(scenario())


@pytest.mark.long
def test_a_worker_that_is_killed_while_it_packs_is_replaced_and_packs_again(
    store: Store, run: Loop, redis_url: str
) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    report_all(store, run)
    task = PackTask(job=job, step=1, sequence_ids=IDS, length_S=np.arange(5, 13), start=SCHEDULE, rules=PackingRules())

    async def scenario() -> None:
        async with running(pool_of(redis_url)) as pool:
            (killed,) = workers(pool)
            os.kill(killed, signal.SIGSTOP)
            dying = asyncio.create_task(pool.pack(task))
            await asyncio.sleep(0)  # the packing is with the worker
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(BrokenProcessPool, match=r"was killed .SIGKILL."):
                await dying
            await has_warm(pool, 1)
            schedule, _ = await pool.pack(task)
            assert schedule.num_sequences == len(IDS)

            pool._settings = pool._settings.model_copy(update={"pack_timeout_s": 0.2})
            os.kill(workers(pool)[0], signal.SIGSTOP)
            with pytest.raises(LimitExceeded, match=r"longer than 0\.2 s and was killed \(pack_timeout_s\)"):
                await pool.pack(task)

    run(scenario())


def test_S7_a_solve_that_needs_more_memory_than_it_may_take_fails_and_leaves_a_fresh_worker(
    store: Store, run: Loop, redis_url: str
) -> None:
    large = run(store.register_job("large", Model(num_layers=1, num_experts=1 << 14, top_k=1), CLUSTER, PlanParams()))
    # A row for every sequence: loads of 512 x 2**14 x 8 bytes.
    schedule = replace(Schedule.round_robin(512, 1, CLUSTER), micro_batch_S=np.arange(512, dtype=np.int32))
    ids = [str(index) for index in range(512)]
    counts_LE = np.ones((1, 1 << 14), dtype=np.uint8)
    of_large = {"job_id": "large", "epoch": large.epoch, "step": 1, "counts_LE": counts_LE}
    run(store.put_counts([SequenceCounts(sequence_id=name, **of_large) for name in ids]))
    run(store.put_schedule(large, 1, ids, schedule))
    small = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    report_all(store, run)
    run(store.put_schedule(small, 1, IDS, SCHEDULE))

    async def scenario() -> None:
        async with running(pool_of(redis_url, solver_memory_bytes=64 << 20)) as pool:
            await pool.solve("job", 1)
            (first,) = workers(pool)
            told = r"ran out of memory: it may take 67108864 bytes .solver_memory_bytes"
            with pytest.raises(LimitExceeded, match=told):
                await pool.solve("large", 1)
            await has_warm(pool, 1)
            assert workers(pool) != [first]
            await pool.solve("job", 1)

    run(scenario())


def test_S9_a_worker_that_dies_while_it_warms_up_is_replaced_and_the_log_says_so(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(solver, "_RETRY_S", 0.0)
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        pool = pool_of(redis_url)
        started = asyncio.create_task(pool.run())
        await asyncio.to_thread(eventually, lambda: pool._cold is not None)
        assert pool.obstacle.startswith("the solver warms up")
        (first,) = pool._cold._processes
        os.kill(first.pid, signal.SIGKILL)
        await has_warm(pool, 1)
        started.cancel()
        assert not pool.obstacle
        assert workers(pool) != [first.pid]
        await pool.close()

    asyncio.run(scenario())
    died, warm = caplog.messages
    assert died.startswith("the solver did not start: the solver was killed (SIGKILL)")
    assert re.fullmatch(r"solver 1 of 1 is warm after \d+\.\d s: it loaded \d+ functions and compiled \d+", warm)


def test_steps_are_solved_once_one_solver_is_warm_and_the_planner_is_ready_once_all_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        second = asyncio.Event()

        class Worker(WarmWorker):
            num_started = 0

            async def warm_up(self) -> tuple[int, int]:
                Worker.num_started += 1
                if Worker.num_started == 2:
                    await second.wait()
                return 7, 0

        monkeypatch.setattr(solver, "_Worker", Worker)
        pool = pool_of("unix:///unused", num_solvers=2)
        async with running(pool):
            await has_warm(pool, 1)
            assert (pool.obstacle, pool.lack) == ("", "1 of 2 solvers are warm")
            assert pool.num_missing == 0, "one that starts for the first time is not missing"
            second.set()
            await has_warm(pool, 2)
            assert (pool.obstacle, pool.lack, pool.num_warm) == ("", "", 2)

    asyncio.run(scenario())


def test_S9_a_solver_that_finds_no_room_for_its_process_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Worker(WarmWorker):
        """A worker that fails to warm up, then one that cannot be started, then one that is well."""

        num_started = 0

        def __init__(self, *_: int) -> None:
            Worker.num_started += 1
            if Worker.num_started == 2:
                raise BlockingIOError("Resource temporarily unavailable")

        async def warm_up(self) -> tuple[int, int]:
            if Worker.num_started == 1:
                raise MemoryError
            return 7, 0

    async def scenario() -> str:
        async with running(pool_of("unix:///unused")) as pool:
            return pool.obstacle

    monkeypatch.setattr(solver, "_Worker", Worker)
    monkeypatch.setattr(solver, "_RETRY_S", 0.0)
    assert not asyncio.run(scenario())
    assert [each.partition(". It is")[0] for each in caplog.messages] == [
        "the solver did not start: MemoryError: ",
        "the solver did not start: BlockingIOError: Resource temporarily unavailable",
    ]


def test_S9_a_solver_that_does_not_become_warm_is_started_again_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Worker(WarmWorker):
        """A worker of which the second and third never become warm."""

        num_started = 0

        def __init__(self, *_: int) -> None:
            Worker.num_started += 1
            self._is_stuck = Worker.num_started in (2, 3)

        async def warm_up(self) -> tuple[int, int]:
            if self._is_stuck:
                await asyncio.Event().wait()
            return 7, 0

    async def scenario() -> None:
        pool = pool_of("unix:///unused", num_solvers=2)
        async with running(pool, 2):
            assert (pool.num_warm, pool.obstacle) == (2, "")

    monkeypatch.setattr(solver, "_Worker", Worker)
    monkeypatch.setattr(solver, "_RETRY_S", 0.0)
    monkeypatch.setattr(solver, "_WARM_UP_TIMEOUT_S", 0.0)
    asyncio.run(scenario())
    assert Worker.num_started == 4
    again = "It is started again in 0 s; meanwhile the planner has 1 of 2 solvers"
    assert caplog.messages == [f"the solver did not start: it was not warm after 0 s. {again}"] * 2


@pytest.mark.parametrize("has_worked", [True, False])
def test_S6_what_other_solves_left_in_a_worker_fails_no_step(has_worked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    class Worker(WarmWorker):
        """A worker whose first process has no memory left."""

        num_started = 0

        def __init__(self, *_: int) -> None:
            self.has_worked = has_worked and not Worker.num_started
            self._number = Worker.num_started
            Worker.num_started += 1

        async def do(self, *_: object) -> str:
            tried.append(self._number)
            if self._number == 0:
                raise MemoryError
            return "plan"

    async def scenario() -> EncodedPlan:
        async with running(pool_of("unix:///unused")) as pool:
            return await pool.solve("job", 1)

    monkeypatch.setattr(solver, "_Worker", Worker)
    if has_worked:
        assert asyncio.run(scenario()) == "plan"
        assert tried == [0, 1]
    else:
        with pytest.raises(LimitExceeded, match="the solve ran out of memory"):
            asyncio.run(scenario())
        assert tried == [0], "a fresh worker has the memory that another fresh worker would have"


def test_S6_a_solve_that_is_cancelled_as_its_worker_died_leaves_a_fresh_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked = asyncio.Event()

    class Worker(WarmWorker):
        """A worker that dies of its first step, and whose end is slow to be told."""

        is_dead = False

        async def do(self, *_: object) -> str:
            self.is_dead = True
            raise BrokenProcessPool("it died")

        async def how_it_died(self) -> str:
            is_asked.set()
            await asyncio.Event().wait()
            return "never"

    async def scenario() -> None:
        async with running(pool_of("unix:///unused", solve_timeout_s=600)) as pool:
            solving = asyncio.create_task(pool.solve("job", 1))
            await is_asked.wait()
            solving.cancel()
            await asyncio.wait({solving})
            await has_warm(pool, 1)
            assert [each.is_dead for each in pool._idle] == [False], "the next step would fail in a dead worker"

    monkeypatch.setattr(solver, "_Worker", Worker)
    asyncio.run(scenario())


def test_S7_no_room_for_a_thread_is_no_memory_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(solving, "_read", read)
    with pytest.raises(MemoryError, match="can't start new thread"):
        solving.solve_step("unix:///unused", "job", 1)
