"""Execution reports: what ranks did with their plans, each kept once per rank and phase."""

import asyncio
import logging
import time

from relibra.errors import Corrupt, LimitExceeded, NotFound
from relibra.planning import ExecutionReport, Phase
from relibra.planning.plan import Level
from relibra.store.address import RedisClient
from relibra.store.array_codec import PackedArray
from relibra.store.connection_guard import ConnectionGuard
from relibra.store.documents import encode_execution_report
from relibra.store.json_codec import to_json
from relibra.store.keys import AttemptKeys
from relibra.store.records import DEFAULT_LIMITS, JobRecord, StoreLimits
from relibra.store.seal import seal
from relibra.store.stored_reports import StoredReports

logger = logging.getLogger(__name__)

_OF_LATE = 16
"""How many steps say whether the next one may have no schedule. As many may follow a pass that records routing."""


class Reports(StoredReports):
    """Execution reports, one per rank and phase, and their sums."""

    def __init__(self, redis: RedisClient, guard: ConnectionGuard | None = None) -> None:
        super().__init__(redis, guard)
        self._is_due: dict[str, bool] = {}
        """The sums that are being made, and whether a report came since."""
        self._sums: set[asyncio.Task[None]] = set()

    async def put_report(self, job: JobRecord, report: ExecutionReport, limits: StoreLimits = DEFAULT_LIMITS) -> bool:
        """Keep the report of a rank for one phase; a second report of the same rank and phase replaces the first.

        The report that completes a phase also makes its sum, so that readers need not read the loads of all ranks to
        say how the step went. If another report of the phase is damaged, there is no sum, and the log says so. If
        nobody scheduled a step of late, the step after it is then planned from history.

        Returns:
            Whether this report made the next step wait for a plan from history.

        Raises:
            StaleEpoch: the attempt of `job` is over.
            NotFound: the step has expired.
            LimitExceeded: the reports of the step, or all that was reported of it, would take more than they may.
        """
        keys, step = AttemptKeys.of_attempt(job), report.step
        loads = report.realised_load_ML, report.expert_load_NLE
        packed = await asyncio.to_thread(lambda: [PackedArray.of(load).to_bytes() for load in loads])
        answer = await self._script(
            "put_report",
            [
                keys.job.of("job"),
                keys.of("steps"),
                *(keys.step(step, name) for name in ("reports", "realised", "reported")),
                keys.of("sizes"),
                keys.step(step, "routed"),
                keys.of("floor"),
            ],
            [
                f"{job.epoch:016x}",
                step,
                report.phase,
                f"{report.ep_group}/{report.ep_rank}",
                seal(encode_execution_report(report)),
                *packed,
                limits.max_reports_size_bytes,
                limits.max_step_size_bytes,
            ],
        )
        match answer:
            case b"stale_epoch":
                raise await self.over(job.job_id, job.epoch)
            case b"expired":
                raise NotFound(f"step {step} of job {job.job_id!r} has expired, so its reports are not kept")
            case b"reports" | b"step":
                raise _too_large(report, answer, limits)
        if answer != job.cluster.num_ep_groups * job.cluster.num_ranks:
            return False
        await self._sum_up(job, step, report.phase)
        return await self._put_history(job, step)

    async def _put_history(self, job: JobRecord, step: int) -> bool:
        """Let the next step wait for a plan from history, if it may have no schedule either; return whether it does."""
        keys, of_late = AttemptKeys.of_attempt(job), range(step, max(step - _OF_LATE, -1), -1)
        is_put = await self._script(
            "put_history",
            [
                keys.job.of("job"),
                keys.step(step + 1, "schedule"),
                *map(keys.of, ("pending", "steps", "foreseen", "open")),
                *(keys.step(earlier, "schedule") for earlier in of_late),
            ],
            [f"{job.epoch:016x}", step + 1, Level.HISTORY, time.time(), Level.MICRO_BATCHES, *of_late],
        )
        return is_put is not None

    async def _sum_up(self, job: JobRecord, step: int, phase: Phase) -> None:
        """Make the sum of a phase. Callers that come meanwhile leave it to the first one, which then starts again."""
        keys = AttemptKeys.of_attempt(job)
        key = keys.step(step, phase)
        is_under_way, self._is_due[key] = key in self._is_due, True
        if is_under_way:
            return
        # A task of its own: a caller whose deadline ends before the sum of a large job would stop it at each try.
        task = asyncio.create_task(self._sum_while_due(job, step, phase, key))
        self._sums.add(task)
        task.add_done_callback(self._sums.discard)
        await asyncio.shield(task)

    async def _sum_while_due(self, job: JobRecord, step: int, phase: Phase, key: str) -> None:
        keys = AttemptKeys.of_attempt(job)
        try:
            while self._is_due[key]:
                self._is_due[key] = False
                executed = await self.sum_reports(job, step, phase=phase)
                # The step may have expired, or have lost reports to a newer attempt.
                for execution in filter(lambda execution: not execution.missing, executed):
                    await self._script(
                        "put_execution",
                        [keys.job.of("job"), keys.of("steps"), keys.step(step, "executed")],
                        [f"{job.epoch:016x}", step, phase, seal(to_json(execution))],
                    )
        except Corrupt as error:
            # The rank whose report came last did nothing wrong, and its report is kept. Readers find the damaged one.
            logger.error("job %s: phase %s of step %d has no sum: %s", job.job_id, phase, step, error)
        finally:
            del self._is_due[key]


def _too_large(report: ExecutionReport, limit: bytes, limits: StoreLimits) -> LimitExceeded:
    rank = f"the report of rank {report.ep_rank} of EP group {report.ep_group}"
    if limit == b"reports":
        return LimitExceeded(
            f"{rank} does not fit: the reports of step {report.step} may take {limits.max_reports_size_bytes} bytes in "
            "Redis (max_reports_size_bytes)",
            limit="max_reports_size_bytes",
        )
    return LimitExceeded(
        f"{rank} does not fit: sequences and reports of step {report.step} may take {limits.max_step_size_bytes} bytes "
        "in Redis (max_step_size_bytes)",
        limit="max_step_size_bytes",
    )
