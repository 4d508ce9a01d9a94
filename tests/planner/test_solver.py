"""The pool with real worker processes; the content of the store decides how a solve goes."""

import asyncio
import os
import signal
from concurrent.futures.process import BrokenProcessPool

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually, is_alive
from harness.step_samples import IDS, SCHEDULE, report_all
from relibra.errors import UnknownJob
from relibra.planner.solver import SolverPool
from relibra.store import Store


def workers(pool: SolverPool) -> list[int]:
    return [process.pid for worker in pool._idle for process in (worker._pool._processes or {}).values()]


def test_a_worker_that_dies_or_runs_away_is_replaced_and_harms_nobody(store: Store, run: Loop, redis_url: str) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))

    async def scenario() -> None:
        pool = SolverPool(redis_url, timeout_s=60)
        first = await pool.solve("job", 1)
        with pytest.raises(UnknownJob):
            await pool.solve("nobody", 1)

        (killed,) = workers(pool)
        os.kill(killed, signal.SIGSTOP)
        dying = asyncio.create_task(pool.solve("job", 1))
        beside = await asyncio.create_task(pool.solve("job", 1))
        assert beside.digest == first.digest
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            await dying

        pool._timeout_s = 0.2
        stopped = workers(pool)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match=r"longer than 0\.2 s and was killed"):
            await pool.solve("job", 1)
        eventually(lambda: sum(is_alive(pid) for pid in stopped) == len(stopped) - 1)
        for pid in stopped:
            if is_alive(pid):
                os.kill(pid, signal.SIGCONT)

        pool._timeout_s = 60
        assert (await pool.solve("job", 1)).digest == first.digest
        left = workers(pool)
        await pool.close()
        assert not any(is_alive(pid) for pid in left)

    run(scenario())
