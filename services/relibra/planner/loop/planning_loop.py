"""From pending steps to published plans: takes the lease on a step, has the step solved, publishes the plan.

Packings that callers wait for take turns with the steps, because they need the same solvers. Packings leave
one of several solvers to the steps.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from relibra.errors import Conflict, Corrupt, LimitExceeded, LostLease, RelibraError, StaleEpoch, Unavailable
from relibra.planner.loop.pending_view import SCAN_INTERVAL_S, PendingView
from relibra.planner.loop.queue import Packed, SolverQueue, WaitingPack
from relibra.planner.loop.step_expiry import StepExpiry
from relibra.planner.metrics import OUT_OF_MEMORY, Metrics
from relibra.planner.plan_notifier import PlanNotifier, wait_until_set
from relibra.planner.settings import PlannerSettings
from relibra.planner.solve.packing import PackTask
from relibra.refusal_log import RefusalLog
from relibra.store import EncodedPlan, Lease, PackingState, Store

logger = logging.getLogger(__name__)

MAX_CRASHES = 3
"""A step fails for good when planning it has crashed this often."""
_RENEWALS_PER_LEASE = 4
_REMINDER_S = 600.0
"""How often the log names a job that stays broken."""


class _Solver(Protocol):
    obstacle: str
    num_warm: int

    async def solve(self, job_id: str, step: int) -> EncodedPlan: ...

    async def pack(self, task: PackTask) -> Packed: ...


class PlanningLoop:
    """Plans one step of a job at a time, and jobs in turn.

    A step that fails or hangs stops no other job, and neither does a job whose keys in Redis something else overwrote.
    """

    def __init__(
        self, store: Store, solver: _Solver, notifier: PlanNotifier, metrics: Metrics, settings: PlannerSettings
    ) -> None:
        self._store = store
        self._solver = solver
        self._notifier = notifier
        self._metrics = metrics
        self._settings = settings
        self._expiry = StepExpiry(store, metrics, settings)
        self._view = PendingView(store)
        self._news = asyncio.Event()
        self._is_stopping = False
        self._solves: dict[str, asyncio.Task[None]] = {}
        self._num_packing = 0
        self._queue = SolverQueue()
        self._broken = RefusalLog(logger, interval_s=_REMINDER_S)

    @property
    def obstacle(self) -> str:
        """Why this planner solves no step yet, and so takes no lease; empty once it does."""
        return self._solver.obstacle

    def wake(self, job_id: str) -> None:
        """Look for work of a job now instead of at the next scan."""
        self._view.note(job_id)
        self._news.set()

    def stop(self) -> None:
        """Let `run` return when the steps that are being solved or packed have ended; refuse packings that wait."""
        self._is_stopping = True
        self._queue.refuse_packs(_drains())
        self._news.set()

    async def pack(self, task: PackTask) -> Packed:
        """Return a packing, which is made in a solver when its job has its turn and a solver is warm.

        A caller who goes loses the packing, but does not end one that a solver works on: it ends soon, and a killed
        solver would be missing for longer.

        Raises:
            RelibraError: the sequences cannot be packed; `Unavailable` also if this planner drains.
        """
        if self._is_stopping:
            raise _drains()
        packed = self._queue.add(task)
        self.wake(task.job.job_id)
        return await packed

    async def run(self) -> None:
        """Plan pending steps until stopped."""
        while not self._is_stopping:
            self._news.clear()
            pause_s = SCAN_INTERVAL_S  # after an error too
            try:
                await self._start_solves()
                pause_s = self._view.wait_s or pause_s
            except Unavailable as error:
                logger.warning("planning waits: %s", error)
            except Corrupt as error:
                self._broken.note(str(error), "", f"nothing is planned: {error}", logging.ERROR)
            except Exception:
                logger.exception("looking for pending steps failed")
            await wait_until_set(self._news, pause_s)
        await asyncio.gather(*self._solves.values())
        await self._expiry.settle()

    async def _start_solves(self) -> None:
        # A planner that still compiles would win steps from one that could solve them at once.
        if self.obstacle:
            return
        pending, unread = await self._view.look()
        broken = dict(unread)
        leased = {step.job_id for step in pending if step.is_leased}
        turns = self._queue.next_turns(pending, self._solves)
        for job_id in turns:
            if self._is_stopping or len(self._solves) >= self._solver.num_warm:
                break
            try:
                work = await self._next_work(job_id)
            except Corrupt as error:
                broken[job_id] = error
                continue
            if work is None:
                self._view.note(job_id)  # another planner has the lease, or solved the step
            else:
                self._metrics.queue_wait_s.observe(self._queue.begin_turn(job_id))
                self._solves[job_id] = asyncio.create_task(work)
        for job_id, damage in broken.items():
            self._tell_broken(job_id, damage)
        solved = self._solves.keys() | broken.keys() | leased
        unsolved = [job_id for job_id in turns if job_id not in solved]
        # Without a lease, a waiting step goes to the first solver that is free, here or at another planner.
        self._queue.note_unsolved(unsolved)

    def _tell_broken(self, job_id: str, error: Corrupt) -> None:
        advice = "none of its steps is planned until that is mended: RelibraJobBroken in the runbook says how"
        self._broken.note(str(error), job_id, f"job {job_id} is set aside: {error}; {advice}", logging.ERROR)

    async def _next_work(self, job_id: str) -> Coroutine[Any, Any, None] | None:
        """Return the packing or the solve that a job waits for; None if another planner solves for it.

        Packings come first: a driver waits for one before it submits the next step.
        """
        # Packings may take long, so they never hold all solvers (S6).
        has_room = self._num_packing < self._solver.num_warm - (self._settings.num_solvers > 1)
        if has_room and (pack := self._queue.take_pack(job_id)):
            self._num_packing += 1
            return self._pack(pack)
        lease = await self._store.take_lease(job_id, self._settings.lease_s)
        return None if lease is None else self._plan(lease)

    async def _pack(self, pack: WaitingPack) -> None:
        """Pack, and let the caller know how that ended."""
        try:
            with contextlib.suppress(Unavailable):  # the note is for pages, and packing needs Redis in any case
                await self._store.note_packing(pack.task.job, pack.task.step, PackingState.PACKING)
            if pack.packed.done():
                gone = "the driver stopped waiting before it was packed"
                await self._store.note_packing(pack.task.job, pack.task.step, PackingState.REFUSED, gone)
            else:
                pack.answer(await self._solver.pack(pack.task))
        except RelibraError as error:
            pack.answer(error)
        except Exception as error:
            logger.error(
                "job %s step %d: packing crashed: %s", pack.job_id, pack.task.step, error, exc_info=_trace(error)
            )
            why = f"packing crashed with {type(error).__name__}: {error}; submit the schedule as it is"
            pack.answer(Unavailable(why))
        finally:
            self._num_packing -= 1
            del self._solves[pack.job_id]
            self.wake(pack.job_id)

    async def _plan(self, lease: Lease) -> None:
        """Solve the leased step and publish its plan, or keep why it has none; then old steps expire."""
        name, about, outcome = f"job {lease.job_id} step {lease.step}", _about(lease), "crashed"
        started_at = time.monotonic()
        try:
            try:
                plan = await self._solve_under(lease)
            except (Unavailable, LostLease):
                raise
            except Exception as error:
                outcome = await self._end_solve(lease, error)
            else:
                solved_at = time.monotonic()
                plan_id = await self._store.publish_plan(lease, plan)
                self._notifier.ring(lease.job_id)
                outcome, published_at = "published", time.monotonic()
                self._metrics.solve_s.observe(solved_at - started_at)
                self._metrics.publish_s.observe(published_at - solved_at)
                took_s, about = published_at - started_at, about | {"version": plan_id.version}
                logger.info("%s: plan %s in %.2f s: %s", name, plan_id, took_s, plan.reason, extra=about)
            # After a failure too: a job whose steps all fail goes on reporting.
            self._expiry.apply_soon(lease.job_id)
        except (Unavailable, LostLease, StaleEpoch, Conflict) as error:
            outcome = type(error).__name__
            logger.warning("%s: plan not published: %s", name, error, extra=about)
        except Corrupt as error:
            outcome = type(error).__name__
            self._tell_broken(lease.job_id, error)
        except Exception:
            logger.exception("%s: planning failed", name, extra=about)
        finally:
            # Publishing has ended the lease; returning it then changes nothing. The step of a broken job is tried again
            # when its lease has ended by itself, or its solves would keep a solver busy all the time.
            with contextlib.suppress(Unavailable, Corrupt):
                if outcome != Corrupt.__name__:
                    await self._store.return_lease(lease)
            self._metrics.solves.labels(outcome).inc()
            del self._solves[lease.job_id]
            # A step that failed, or that another planner planned meanwhile, has news too.
            self._notifier.ring(lease.job_id)
            self.wake(lease.job_id)

    async def _solve_under(self, lease: Lease) -> EncodedPlan:
        """Solve the step while the lease holds. Losing the lease stops the solve and its worker."""
        solving = asyncio.create_task(self._solver.solve(lease.job_id, lease.step))
        renewing = asyncio.create_task(self._renew(lease))
        try:
            # Side by side: a renewal that waits for Redis must not hold up a plan that is ready.
            await asyncio.wait({solving, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if renewing.done():
                await renewing
            return await solving
        finally:
            solving.cancel()
            renewing.cancel()

    async def _renew(self, lease: Lease) -> None:
        """Renew the lease until it is lost."""
        while True:
            await asyncio.sleep(self._settings.lease_s / _RENEWALS_PER_LEASE)
            # If Redis cannot be reached, the lease may end; `publish_plan` notices.
            with contextlib.suppress(Unavailable):
                await self._store.renew_lease(lease, self._settings.lease_s)

    async def _end_solve(self, lease: Lease, error: Exception) -> str:
        """Keep why the step could not be planned, for good or to be tried again; return the outcome."""
        name, about = f"job {lease.job_id} step {lease.step}", _about(lease)
        if isinstance(error, RelibraError):
            logger.warning("%s cannot be planned: %s", name, error, extra=about)
            await self._store.end_solve(lease, str(error))
            if isinstance(error, LimitExceeded):
                self._metrics.limited.labels(error.limit or "other").inc()
                return OUT_OF_MEMORY if error.limit == "solver_memory_bytes" else "failed"
            return "failed"
        logger.error("%s: planning crashed: %s", name, error, exc_info=_trace(error), extra=about)
        reason = f"planning crashed {MAX_CRASHES} times, at last with {type(error).__name__}: {error}"
        has_failed = await self._store.end_solve(lease, reason, max_crashes=MAX_CRASHES)
        return "failed" if has_failed else "crashed"


def _trace(error: Exception) -> Exception | None:
    """Return an error whose place in the code is needed; a solver that was killed says by itself why."""
    return None if isinstance(error, (BrokenProcessPool, TimeoutError)) else error


def _drains() -> Unavailable:
    return Unavailable("this planner drains; ask another one")


def _about(lease: Lease) -> dict[str, Any]:
    """Return the fields of a log record about a leased step."""
    return {"job": lease.job_id, "step": lease.step, "epoch": lease.epoch}
