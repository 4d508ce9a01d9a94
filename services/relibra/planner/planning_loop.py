"""Takes pending steps from the store under a lease, has them solved, and publishes their plans."""

import asyncio
import contextlib
import logging
import time
from typing import Any, Protocol

from opentelemetry import propagate, trace

from relibra.errors import Conflict, LostLease, RelibraError, StaleEpoch, Unavailable
from relibra.planner.fair_order import next_turns
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import PlanNotifier, wait_until_set
from relibra.planner.settings import PlannerSettings
from relibra.planner.solving import SolvedStep
from relibra.store import Lease, Store

logger = logging.getLogger(__name__)
_tracer = trace.get_tracer("relibra.planner")

SCAN_INTERVAL_S = 0.25
"""How long a step may go unnoticed that another planner took in, or left behind."""
MAX_CRASHES = 3
_RENEWALS_PER_LEASE = 4


class _Solver(Protocol):
    async def solve(self, job_id: str, step: int) -> SolvedStep: ...


class PlanningLoop:
    """One step a job at a time, jobs in turn. Supervised: whatever a step does, the others are tried."""

    def __init__(
        self, store: Store, solver: _Solver, notifier: PlanNotifier, metrics: Metrics, settings: PlannerSettings
    ) -> None:
        self._store = store
        self._solver = solver
        self._notifier = notifier
        self._metrics = metrics
        self._settings = settings
        self._news = asyncio.Event()
        self._is_stopping = False
        self._solves: dict[str, asyncio.Task[None]] = {}
        self._last_turn: dict[str, int] = {}
        self._num_turns = 0

    def wake(self) -> None:
        """Look for pending steps now, not at the next scan."""
        self._news.set()

    def stop(self) -> None:
        """Let `run` return after the steps that are being solved."""
        self._is_stopping = True
        self._news.set()

    async def run(self) -> None:
        """Plan pending steps until stopped."""
        while not self._is_stopping:
            self._news.clear()
            try:
                await self._start_solves()
            except Unavailable as error:
                logger.warning("planning waits: %s", error)
            except Exception:
                logger.exception("looking for pending steps failed")
            await wait_until_set(self._news, SCAN_INTERVAL_S)
        await asyncio.gather(*self._solves.values())

    async def _start_solves(self) -> None:
        if len(self._solves) >= self._settings.num_solvers:
            return
        pending = await self._store.pending_steps()
        waiting = {each.job_id for each in pending}
        self._last_turn = {job_id: turn for job_id, turn in self._last_turn.items() if job_id in waiting}
        for job_id in next_turns(pending, self._last_turn, self._solves):
            if self._is_stopping or len(self._solves) >= self._settings.num_solvers:
                return
            if lease := await self._store.take_lease(job_id, self._settings.lease_s):
                self._num_turns += 1
                self._last_turn[job_id] = self._num_turns
                self._solves[job_id] = asyncio.create_task(self._plan_traced(lease))

    async def _plan_traced(self, lease: Lease) -> None:
        caller = propagate.extract({"traceparent": lease.traceparent})
        with _tracer.start_as_current_span("PlanStep", context=caller):
            await self._plan(lease)

    async def _plan(self, lease: Lease) -> None:
        outcome = "crashed"
        told = _about(lease)
        name = f"job {lease.job_id} step {lease.step}"
        try:
            outcome = await self._publish(lease)
            # After a failure too: a job whose every step fails goes on reporting.
            await self._store.expire_steps(lease, self._settings.retained_steps)
        except (Unavailable, LostLease, StaleEpoch, Conflict) as error:
            outcome = type(error).__name__
            logger.warning("%s: plan not published: %s", name, error, extra=told)
        except Exception:
            logger.exception("%s: planning failed", name, extra=told)
        finally:
            # Does nothing where the lease has ended, as it has after publishing.
            with contextlib.suppress(Unavailable):
                await self._store.return_lease(lease)
            self._metrics.solves.labels(outcome).inc()
            del self._solves[lease.job_id]
            self._notifier.ring(lease.job_id)
            self.wake()

    async def _publish(self, lease: Lease) -> str:
        """Solve and publish the leased step, or tell why not; return how it ended."""
        started_at = time.monotonic()
        name = f"job {lease.job_id} step {lease.step}"
        try:
            solved = await self._solve_under(lease)
        except (Unavailable, LostLease):
            raise
        except RelibraError as error:
            logger.warning("%s cannot be planned: %s", name, error, extra=_about(lease))
            await self._store.end_solve(lease, str(error))
            return "failed"
        except Exception as error:
            logger.error("%s: planning crashed", name, exc_info=error, extra=_about(lease))
            reason = f"planning crashed {MAX_CRASHES} times, at last with {type(error).__name__}: {error}"
            has_failed = await self._store.end_solve(lease, reason, max_crashes=MAX_CRASHES)
            return "failed" if has_failed else "crashed"
        solved_at = time.monotonic()
        plan_id = await self._store.publish_plan(lease, solved.plan)
        published_at = time.monotonic()
        self._metrics.solve_s.observe(solved_at - started_at)
        self._metrics.publish_s.observe(published_at - solved_at)
        logger.info(
            *("%s: plan %s in %.2f s: %s", name, plan_id, published_at - started_at, solved.plan.reason),
            extra=_about(lease) | {"version": plan_id.version},
        )
        return "published"

    async def _solve_under(self, lease: Lease) -> SolvedStep:
        """Solve while the lease holds; who loses it stops, and its worker with it."""
        solving = asyncio.create_task(self._solver.solve(lease.job_id, lease.step))
        renewing = asyncio.create_task(self._renew(lease))
        try:
            # Beside each other: a renewal that Redis does not answer must not hold up a plan that is there.
            await asyncio.wait({solving, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if renewing.done():
                await renewing
            return await solving
        finally:
            solving.cancel()
            renewing.cancel()

    async def _renew(self, lease: Lease) -> None:
        """Hold a lease until it is lost."""
        while True:
            await asyncio.sleep(self._settings.lease_s / _RENEWALS_PER_LEASE)
            # Redis out of reach costs the lease at worst, and `publish_plan` will tell.
            with contextlib.suppress(Unavailable):
                await self._store.renew_lease(lease, self._settings.lease_s)


def _about(lease: Lease) -> dict[str, Any]:
    """What a log record says it is about."""
    about = {"job": lease.job_id, "step": lease.step, "epoch": lease.epoch}
    context = trace.get_current_span().get_span_context()
    return about | {"trace": trace.format_trace_id(context.trace_id)} if context.is_valid else about
