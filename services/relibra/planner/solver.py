"""The worker processes that solve steps, as the event loop sees them."""

import asyncio
import logging
import multiprocessing
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from relibra.errors import LimitExceeded
from relibra.planner.solving import prepare_worker, solve_step, warm_up
from relibra.store import EncodedPlan

if TYPE_CHECKING:
    from relibra.planning.jit import MachineCode

logger = logging.getLogger(__name__)

_WARMS_UP = "the solver warms up: it loads its machine code or, on a CPU that it has no code for, compiles it"
_RETRY_S = 5.0
_LOOK_INTERVAL_S = 0.05
_NUM_LOOKS = 20


class SolverPool:
    """A pool with one worker process per concurrent solve. The pool starts and warms one worker in advance.

    Workers are processes because compiled loops hold the interpreter lock while they run, and the event loop must keep
    answering agents. A solve that crashes, runs away or takes too much memory is killed without harm to other solves.
    """

    def __init__(self, redis_url: str, *, timeout_s: float, memory_bytes: int, num_threads: int = 1) -> None:
        """Start the first worker.

        Args:
            redis_url: the store that workers read.
            timeout_s: how long a solve may take.
            memory_bytes: how much memory the arrays of a solve may take.
            num_threads: how many threads a solve uses.
        """
        self._redis_url = redis_url
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._num_threads = num_threads
        self._idle = [self._worker()]
        self.obstacle = _WARMS_UP
        """Why no step can be solved in good time, for people; empty once the first worker is warm."""

    async def warm_up(self) -> None:
        """Wait until the first worker is warm. One that ends before is replaced, and the log says why it ended."""
        started_at, fault = time.monotonic(), ""
        while True:
            try:
                if fault:
                    self._idle[0] = self._replace(self._idle[0])
                code = await self._idle[0].warm_up()
                break
            except BrokenProcessPool:
                fault = await self._idle[0].how_it_died()
            except Exception as error:  # also of a machine that has no room for one more process
                fault = f"{type(error).__name__}: {error}"
            self.obstacle = f"the solver did not start: {fault}"
            logger.error("%s. It is started again in %.0f s, and no step is solved until then", self.obstacle, _RETRY_S)
            await asyncio.sleep(_RETRY_S)
        self.obstacle = ""
        logger.info(
            "the solver is warm after %.1f s: it loaded %d functions and compiled %d",
            time.monotonic() - started_at,
            *code,
        )

    async def solve(self, job_id: str, step: int) -> EncodedPlan:
        """Solve one step and return its checked plan; cancelling this kills the solve.

        Raises:
            RelibraError: the step cannot be planned, or Redis does not answer (`Unavailable`).
            LimitExceeded: the solve needs more memory than it may take, also in a fresh worker, and was killed.
            TimeoutError: the solve took too long and was killed.
            BrokenProcessPool: the worker died; the text says how.
        """
        worker = self._idle.pop() if self._idle else self._worker()
        try:
            async with asyncio.timeout(self._timeout_s):
                has_worked = worker.has_worked
                try:
                    solved = await worker.solve(self._redis_url, job_id, step)
                except MemoryError:
                    if not has_worked:
                        raise
                    # What earlier solves, perhaps of other jobs, left in the process counts against the limit.
                    worker = self._replace(worker)
                    solved = await worker.solve(self._redis_url, job_id, step)
        except TimeoutError:
            worker = self._replace(worker)
            raise TimeoutError(f"the solve took longer than {self._timeout_s:g} s and was killed") from None
        except MemoryError as error:
            # What a failed solve leaves in its process would be missing in the next solve.
            worker = self._replace(worker)
            raise LimitExceeded(
                f"the solve ran out of memory: it may take {self._memory_bytes} bytes (solver_memory_bytes): {error}; "
                "schedule fewer micro-batches or sequences, or raise the limit",
                limit="solver_memory_bytes",
            ) from None
        except BrokenProcessPool:
            dead, worker = worker, self._replace(worker)  # before the wait, in which this solve may be cancelled
            raise BrokenProcessPool(await dead.how_it_died()) from None
        except asyncio.CancelledError:
            worker = self._replace(worker)
            raise
        finally:
            self._idle.append(worker)
        return solved

    def _replace(self, worker: "_Worker") -> "_Worker":
        worker.kill()
        return self._worker()

    def _worker(self) -> "_Worker":
        return _Worker(self._memory_bytes, self._num_threads)

    async def close(self) -> None:
        """Kill the workers. None is solving any more, but one may still be compiling, which takes half a minute."""
        for process in [process for worker in self._idle for process in worker.kill()]:
            await asyncio.to_thread(process.join)


class _Worker:
    """One worker process. It is spawned because gRPC does not survive a fork."""

    def __init__(self, memory_bytes: int, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker
        )
        self._warming = self._pool.submit(warm_up, memory_bytes, num_threads)
        self.has_worked = False
        """Whether the process has worked on a step."""
        # A broken pool forgets its process.
        self._processes: list[BaseProcess] = list((self._pool._processes or {}).values())

    async def warm_up(self) -> "MachineCode":
        return await asyncio.wrap_future(self._warming)

    async def solve(self, redis_url: str, job_id: str, step: int) -> EncodedPlan:
        self.has_worked = True
        return await asyncio.wrap_future(self._pool.submit(solve_step, redis_url, job_id, step, self._num_threads))

    async def how_it_died(self) -> str:
        (process,) = self._processes
        for _ in range(_NUM_LOOKS):
            # The pool's own thread collects the exit status too, a moment after the pool breaks.
            if process.exitcode is not None:
                break
            await asyncio.sleep(_LOOK_INTERVAL_S)
        status = process.exitcode
        if status == -signal.SIGKILL:
            return "the solver was killed (SIGKILL), most often because the machine or its container ran out of memory"
        if status is not None and status < 0:
            return f"the solver died of {signal.Signals(-status).name}: out of memory, or a fault in compiled code"
        return f"the solver ended with status {status}"

    def kill(self) -> list[BaseProcess]:
        # `ProcessPoolExecutor.kill_workers` exists from Python 3.14 on.
        for process in self._processes:
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return self._processes
