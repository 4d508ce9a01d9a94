"""The worker processes that solve and pack steps, as the event loop sees them."""

import asyncio
import logging
import multiprocessing
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, TypeVar

from relibra.errors import LimitExceeded
from relibra.planner.settings import PlannerSettings
from relibra.planner.solve.packing import PackTask, pack_step
from relibra.planner.solve.solving import prepare_worker, solve_step, warm_up
from relibra.planning import Schedule
from relibra.store import EncodedPlan

if TYPE_CHECKING:
    from relibra.planning.jit import MachineCode

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_WARMS_UP = "the solver warms up: it loads its machine code or, on a CPU that it has no code for, compiles it"
_WARM_UP_TIMEOUT_S = 300.0
"""Ten times what compiling takes on one core; a worker that takes longer is killed, and another one started."""
_RETRY_S = 5.0
_LOOK_INTERVAL_S = 0.05
_NUM_LOOKS = 20


class SolverPool:
    """Worker processes, each of which solves one step at a time, and none of which gets a step before it is warm.

    Workers are processes because compiled loops hold the interpreter lock while they run, and the event loop must keep
    answering agents. A solve that crashes, runs away or takes too much memory is killed without harm to other solves.
    """

    def __init__(self, settings: PlannerSettings) -> None:
        """Describe the workers; `run` starts them."""
        self._settings = settings
        self._idle: list[_Worker] = []
        self._cold: _Worker | None = None
        self.num_warm = 0
        """How many workers are warm, those that solve a step included."""
        self._lacks_workers = asyncio.Event()
        self._lacks_workers.set()
        self._has_started = False
        """Whether all workers were warm once, or could not become warm."""
        self.obstacle = _WARMS_UP
        """Why no step can be solved in good time, for people; empty once a worker is warm."""

    async def run(self) -> None:
        """Start workers, one after the other, until all are warm, and replace each that ends. Cancelling ends this."""
        while True:
            await self._lacks_workers.wait()
            while self.num_warm < self._settings.num_solvers:
                await self._add_worker()
            self._has_started = True
            self._lacks_workers.clear()

    @property
    def lack(self) -> str:
        """Why a step may have to wait for a worker to start, for people; empty once no worker is to be waited for."""
        if self.obstacle or self._has_started:
            return self.obstacle
        return f"{self.num_warm} of {self._settings.num_solvers} solvers are warm"

    @property
    def num_missing(self) -> int:
        """How many workers ended, or could not start; those that start for the first time are not missing."""
        return self._settings.num_solvers - self.num_warm if self._has_started else 0

    async def _add_worker(self) -> None:
        """Start a worker and wait until it is warm. The log says why one did not become warm."""
        started_at = time.monotonic()
        try:
            self._cold = worker = self._worker()
            async with asyncio.timeout(_WARM_UP_TIMEOUT_S):
                code = await worker.warm_up()
        except BrokenProcessPool:
            await self._tell_of_fault(await worker.how_it_died())
        except TimeoutError:
            await self._tell_of_fault(f"it was not warm after {_WARM_UP_TIMEOUT_S:.0f} s")
        except Exception as error:  # also of a machine that has no room for one more process
            await self._tell_of_fault(f"{type(error).__name__}: {error}")
        else:
            self._cold = None
            self.num_warm += 1
            self._idle.append(worker)
            self.obstacle = ""
            logger.info(
                "solver %d of %d is warm after %.1f s: it loaded %d functions and compiled %d",
                self.num_warm,
                self._settings.num_solvers,
                time.monotonic() - started_at,
                *code,
            )

    async def _tell_of_fault(self, fault: str) -> None:
        if self._cold is not None:
            self._cold.kill()
        told = f"the solver did not start: {fault}"
        if self.num_warm:
            self._has_started = True
            having = f"{self.num_warm} of {self._settings.num_solvers} solvers"
            logger.error("%s. It is started again in %.0f s; meanwhile the planner has %s", told, _RETRY_S, having)
        else:
            self.obstacle = told
            logger.error("%s. It is started again in %.0f s, and no step is solved until then", told, _RETRY_S)
        await asyncio.sleep(_RETRY_S)

    async def solve(self, job_id: str, step: int) -> EncodedPlan:
        """Solve one step in a warm worker and return its checked plan; cancelling this kills the solve.

        At most `num_warm` steps may be solved or packed at the same time.

        Raises:
            RelibraError: the step cannot be planned, or Redis does not answer (`Unavailable`).
            LimitExceeded: the solve needs more memory than it may take, also in a fresh worker, and was killed.
            TimeoutError: the solve took too long and was killed.
            BrokenProcessPool: the worker died; the text says how.
        """
        num_threads, timeout_s = self._settings.num_solver_threads or 1, self._settings.solve_timeout_s
        return await self._in_worker(
            "solve", timeout_s, solve_step, self._settings.redis_url, job_id, step, num_threads
        )

    async def pack(self, task: PackTask) -> tuple[Schedule, str]:
        """Pack the sequences of a step in a warm worker; raises as `solve`, and `LimitExceeded` if it takes long."""
        try:
            timeout_s = self._settings.pack_timeout_s
            return await self._in_worker("packing", timeout_s, pack_step, self._settings.redis_url, task)
        except TimeoutError as error:
            told = f"{error} (pack_timeout_s): submit the schedule as it is, or let fewer sequences be packed"
            raise LimitExceeded(told, limit="pack_timeout_s") from None

    async def _in_worker(self, what: str, timeout_s: float, work: Callable[..., _Result], *arguments: Any) -> _Result:
        worker = self._idle.pop()
        try:
            async with asyncio.timeout(timeout_s):
                has_worked = worker.has_worked
                try:
                    return await worker.do(work, *arguments)
                except MemoryError:
                    if not has_worked:
                        raise
                    # What earlier work, perhaps of other jobs, left in the process counts against the limit.
                    worker.kill()
                    worker = self._worker()
                    return await worker.do(work, *arguments)
        except TimeoutError:
            worker.kill()
            raise TimeoutError(f"the {what} took longer than {timeout_s:g} s and was killed") from None
        except MemoryError as error:
            # What failed work leaves in its process would be missing in the next solve.
            worker.kill()
            raise LimitExceeded(
                f"the {what} ran out of memory: it may take {self._settings.solver_memory_bytes} bytes "
                f"(solver_memory_bytes): {error}; schedule fewer micro-batches or sequences, or raise the limit",
                limit="solver_memory_bytes",
            ) from None
        except BrokenProcessPool:
            worker.kill()
            raise BrokenProcessPool(await worker.how_it_died()) from None
        except asyncio.CancelledError:
            worker.kill()
            raise
        finally:
            if worker.is_killed:
                self.num_warm -= 1
                self._lacks_workers.set()
            else:
                self._idle.append(worker)

    def _worker(self) -> "_Worker":
        return _Worker(self._settings.solver_memory_bytes, self._settings.num_solver_threads or 1)

    async def close(self) -> None:
        """Kill the workers, after `run` was cancelled. None is solving any more, but one may still be compiling."""
        workers = [*self._idle, *([] if self._cold is None else [self._cold])]
        for process in [process for worker in workers for process in worker.kill()]:
            await asyncio.to_thread(process.join)


class _Worker:
    """One worker process. It is spawned because gRPC does not survive a fork."""

    def __init__(self, memory_bytes: int, num_threads: int) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=prepare_worker
        )
        self._warming = self._pool.submit(warm_up, memory_bytes, num_threads)
        self.has_worked = False
        """Whether the process has worked on a step."""
        self.is_killed = False
        # A broken pool forgets its process.
        self._processes: list[BaseProcess] = list((self._pool._processes or {}).values())

    async def warm_up(self) -> "MachineCode":
        return await asyncio.wrap_future(self._warming)

    async def do(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        self.has_worked = True
        return await asyncio.wrap_future(self._pool.submit(work, *arguments))

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
        self.is_killed = True
        # `ProcessPoolExecutor.kill_workers` exists from Python 3.14 on.
        for process in self._processes:
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return self._processes
