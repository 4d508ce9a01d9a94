"""The worker processes that solve steps, as the event loop sees them."""

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess

from relibra.planner.solving import prepare_worker, solve_step, warm_up
from relibra.store import EncodedPlan


class SolverPool:
    """A pool with one worker process per concurrent solve. The pool starts and warms one worker in advance.

    Workers are processes because compiled loops hold the interpreter lock while they run, and the event loop must keep
    answering agents. A solve that crashes or runs away is killed without harm to other solves.
    """

    def __init__(self, redis_url: str, *, timeout_s: float) -> None:
        self._redis_url = redis_url
        self._timeout_s = timeout_s
        self._idle = [_Worker()]

    async def solve(self, job_id: str, step: int) -> EncodedPlan:
        """Solve one step and return its checked plan; cancelling this kills the solve.

        Raises:
            RelibraError: the step cannot be planned, or Redis does not answer (`Unavailable`).
            TimeoutError: the solve took too long and was killed.
            BrokenProcessPool: the worker died.
        """
        worker = self._idle.pop() if self._idle else _Worker()
        try:
            async with asyncio.timeout(self._timeout_s):
                solved = await worker.solve(self._redis_url, job_id, step)
        except TimeoutError:
            worker.kill()
            worker = _Worker()
            raise TimeoutError(f"the solve took longer than {self._timeout_s:g} s and was killed") from None
        except (asyncio.CancelledError, BrokenProcessPool):
            worker.kill()
            worker = _Worker()
            raise
        finally:
            self._idle.append(worker)
        return solved

    async def close(self) -> None:
        """Kill the workers. None is solving any more, but one may still be compiling, which takes half a minute."""
        for process in [process for worker in self._idle for process in worker.kill()]:
            await asyncio.to_thread(process.join)


class _Worker:
    """One worker process. It is spawned because gRPC does not survive a fork."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker
        )
        self._pool.submit(warm_up)

    async def solve(self, redis_url: str, job_id: str, step: int) -> EncodedPlan:
        return await asyncio.wrap_future(self._pool.submit(solve_step, redis_url, job_id, step))

    def kill(self) -> list[BaseProcess]:
        # `ProcessPoolExecutor.kill_workers` exists from Python 3.14 on.
        processes: list[BaseProcess] = list((self._pool._processes or {}).values())
        for process in processes:
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return processes
