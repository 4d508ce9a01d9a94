"""The worker process that solves, seen from the event loop."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from relibra.planner.solving import SolvedStep, prepare_worker, solve_step, warm_up


class Solver:
    """One worker process, replaced when it dies.

    A process and not a thread: compiled loops hold the interpreter lock for as long as they run, and the event loop
    must answer agents meanwhile. Spawned, because gRPC does not survive a fork.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker
        )
        pool.submit(warm_up)
        return pool

    async def solve(self, job_id: str, step: int) -> SolvedStep:
        """Solve one step.

        Raises:
            RelibraError: the step cannot be planned, or Redis does not answer (`Unavailable`).
            BrokenProcessPool: the worker died of it; the next call has a new one.
        """
        try:
            return await asyncio.wrap_future(self._pool.submit(solve_step, self._redis_url, job_id, step))
        except BrokenProcessPool:
            self._pool.shutdown(wait=False)
            self._pool = self._start()
            raise

    async def close(self) -> None:
        """Stop the worker, after the step it is solving."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
