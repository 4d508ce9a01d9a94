"""Execution reports: what ranks did with their plans."""

import asyncio
from collections.abc import Iterable, Sequence

from relibra.planning import ExecutionReport
from relibra.planning.execution import Execution, executions
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.documents import (
    decode_execution_report,
    decode_execution_sum,
    encode_execution_report,
    encode_execution_sum,
)
from relibra.store.keys import JobKeys
from relibra.store.records import JobRecord


class Reports(Connected):
    """Execution reports, one per rank and phase, and their sums."""

    @raises_unavailable
    async def put_report(self, job: JobRecord, report: ExecutionReport) -> None:
        """Keep the report of a rank for one phase; a second report of the same rank and phase replaces the first.

        The report that completes a phase also makes its sum, so that readers need not read the loads of all ranks to
        say how the step went. A report for an unknown or expired step is dropped, because it would never expire.
        """
        keys, step = JobKeys(job.job_id), report.step
        fields = await self._script(
            "put_report",
            [keys.of("steps"), keys.step(step, "reports"), keys.step(step, "realised")],
            [
                step,
                f"{report.phase}/{report.ep_group}/{report.ep_rank}",
                encode_execution_report(report),
                report.realised_load_ML.astype("<i8").tobytes(),
            ],
        )
        of_phase = [each for each in fields if each.startswith(f"{report.phase}/".encode())]
        if len(of_phase) == job.cluster.num_ep_groups * job.cluster.num_ranks:
            await self._sum_up(job, step, of_phase)

    async def _sum_up(self, job: JobRecord, step: int, fields: Sequence[bytes]) -> None:
        keys = JobKeys(job.job_id)
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
            [keys.of("steps"), keys.step(step, "executed")],
            [step, execution.phase, encode_execution_sum(execution)],
        )

    @raises_unavailable
    async def get_reports(self, job_id: str, step: int) -> list[ExecutionReport]:
        """Return the reports of a step, sorted by phase, EP group and rank."""
        keys = JobKeys(job_id)
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
    async def num_reports(self, job_id: str, steps: Iterable[int]) -> list[int]:
        """Return how many reports each of some steps has, in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hlen(JobKeys(job_id).step(step, "reports"))
        return [int(number) for number in await pipe.execute()] if len(pipe) else []

    @raises_unavailable
    async def get_executions(self, job_id: str, steps: Iterable[int]) -> list[list[Execution]]:
        """Return, for each of some steps, the phases that all ranks have reported, in the order of execution."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hvals(JobKeys(job_id).step(step, "executed"))
        found = await pipe.execute() if len(pipe) else []
        return [sorted(map(decode_execution_sum, values), key=lambda each: each.phase) for values in found]
