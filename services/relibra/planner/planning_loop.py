"""Takes pending steps from the store, has them solved, and publishes their plans."""

import asyncio
import logging
import time
from collections import Counter
from typing import Protocol

from relibra.errors import Conflict, RelibraError, StaleEpoch, Unavailable
from relibra.planner.bell import Bell, wait_until_set
from relibra.planner.solving import SolvedStep
from relibra.store import PendingStep, Store

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S = 1.0
"""How long a step may go unnoticed whose schedule another planner took before it died."""
_MAX_CRASHES = 3


class _Solver(Protocol):
    async def solve(self, job_id: str, step: int) -> SolvedStep: ...


class PlanningLoop:
    """One step at a time, longest waiting first. Supervised: whatever a step does, the next one is tried."""

    def __init__(self, store: Store, solver: _Solver, bell: Bell, *, scan_interval_s: float = SCAN_INTERVAL_S) -> None:
        self._store = store
        self._solver = solver
        self._bell = bell
        self._scan_interval_s = scan_interval_s
        self._news = asyncio.Event()
        self._is_stopping = False
        self._num_crashes: Counter[tuple[str, int]] = Counter()

    def wake(self) -> None:
        """Look for pending steps now, not at the next scan."""
        self._news.set()

    def stop(self) -> None:
        """Let `run` return after the step that is being solved."""
        self._is_stopping = True
        self._news.set()

    async def run(self) -> None:
        """Plan pending steps until stopped."""
        while not self._is_stopping:
            self._news.clear()
            try:
                for pending in await self._store.pending_steps():
                    if self._is_stopping:
                        return
                    await self._plan(pending)
            except Unavailable as error:
                logger.warning("planning waits: %s", error)
            except Exception:
                logger.exception("looking for pending steps failed")
            await wait_until_set(self._news, self._scan_interval_s)

    async def _plan(self, pending: PendingStep) -> None:
        job_id, step = pending.job_id, pending.step
        started_at = time.monotonic()
        try:
            solved = await self._solver.solve(job_id, step)
            plan_id = await self._store.publish_plan(job_id, step, solved.plan, epoch=solved.epoch)
            logger.info(
                "job %s step %d: plan %s in %.2f s: %s",
                job_id,
                step,
                plan_id,
                time.monotonic() - started_at,
                solved.plan.reason,
            )
        except Unavailable:
            raise
        except (Conflict, StaleEpoch) as error:
            logger.warning("job %s step %d: plan not published: %s", job_id, step, error)
        except RelibraError as error:
            logger.warning("job %s step %d cannot be planned: %s", job_id, step, error)
            await self._store.plan_failed(job_id, step, str(error))
        except Exception as error:
            await self._crashed(pending, error)
        else:
            self._num_crashes.pop((job_id, step), None)
        self._bell.ring(job_id)

    async def _crashed(self, pending: PendingStep, error: Exception) -> None:
        """A bug or a dead worker: try again at the next scan, but not for ever."""
        key = (pending.job_id, pending.step)
        self._num_crashes[key] += 1
        logger.error("job %s step %d: planning crashed (%d)", *key, self._num_crashes[key], exc_info=error)
        if self._num_crashes[key] >= _MAX_CRASHES:
            await self._store.plan_failed(
                *key, f"planning crashed {_MAX_CRASHES} times, at last with {type(error).__name__}: {error}"
            )
            del self._num_crashes[key]
