"""Execution reports: what ranks did with their plans."""

import asyncio
from collections.abc import Iterable, Sequence

from relibra.planning import ExecutionReport
from relibra.planning.execution import Execution, executions
from relibra.store.attempts import Attempts
from relibra.store.connection import raises_unavailable
from relibra.store.documents import (
    decode_execution_report,
    decode_execution_sum,
    encode_execution_report,
    encode_execution_sum,
)
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import JobRecord


class Reports(Attempts):
    """Execution reports, one per rank and phase, and their sums."""

    @raises_unavailable
    async def put_report(self, job: JobRecord, report: ExecutionReport) -> bool:
        """Keep the report of a rank for one phase; a second report of the same rank and phase replaces the first.

        The report that completes a phase also makes its sum, so that readers need not read the loads of all ranks to
        say how the step went. A report for an unknown or expired step is dropped, because it would never expire.

        Returns:
            Whether the step is known, so that the report was kept.

        Raises:
            StaleEpoch: the attempt of `job` is over.
        """
        keys, step = AttemptKeys.of_attempt(job), report.step
        fields = await self._script(
            "put_report",
            [keys.job.of("job"), keys.of("steps"), keys.step(step, "reports"), keys.step(step, "realised")],
            [
                f"{job.epoch:016x}",
                step,
                f"{report.phase}/{report.ep_group}/{report.ep_rank}",
                encode_execution_report(report),
                report.realised_load_ML.astype("<i8").tobytes(),
            ],
        )
        if fields is None:
            raise await self.over(job.job_id, job.epoch)
        of_phase = [each for each in fields if each.startswith(f"{report.phase}/".encode())]
        if len(of_phase) == job.cluster.num_ep_groups * job.cluster.num_ranks:
            await self._sum_up(job, step, of_phase)
        return bool(fields)

    async def _sum_up(self, job: JobRecord, step: int, fields: Sequence[bytes]) -> None:
        keys = AttemptKeys.of_attempt(job)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hmget(keys.step(step, "reports"), fields)
        pipe.hmget(keys.step(step, "realised"), fields)
        documents, realised = await pipe.execute()
        if None in documents or None in realised:
            return  # the step has expired

        def sum_up() -> Execution:
            reports = [decode_execution_report(step, *each) for each in zip(documents, realised, strict=True)]
            return executions(reports, job.cluster)[0]

        execution = await asyncio.to_thread(sum_up)
        await self._script(
            "put_execution",
            [keys.job.of("job"), keys.of("steps"), keys.step(step, "executed")],
            [f"{job.epoch:016x}", step, execution.phase, encode_execution_sum(execution)],
        )

    @raises_unavailable
    async def get_reports(self, attempt: AttemptId, step: int) -> list[ExecutionReport]:
        """Return the reports of a step, sorted by phase, EP group and rank."""
        keys = AttemptKeys.of_attempt(attempt)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(keys.step(step, "reports"))
        pipe.hgetall(keys.step(step, "realised"))
        documents, realised = await pipe.execute()
        # The step may expire between the two reads.
        reports = [
            decode_execution_report(step, documents[field], realised[field]) for field in documents if field in realised
        ]
        return sorted(reports, key=lambda each: (each.phase, each.ep_group, each.ep_rank))

    @raises_unavailable
    async def num_reports(self, attempt: AttemptId, steps: Iterable[int]) -> list[int]:
        """Return how many reports each of some steps has, in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hlen(AttemptKeys.of_attempt(attempt).step(step, "reports"))
        return [int(number) for number in await pipe.execute()] if len(pipe) else []

    @raises_unavailable
    async def get_executions(self, attempt: AttemptId, steps: Iterable[int]) -> list[list[Execution]]:
        """Return, for each of some steps, the phases that all ranks have reported, in the order of execution."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hvals(AttemptKeys.of_attempt(attempt).step(step, "executed"))
        found = await pipe.execute() if len(pipe) else []
        return [sorted(map(decode_execution_sum, values), key=lambda each: each.phase) for values in found]
