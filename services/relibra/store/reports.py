"""What ranks did with their plans."""

from collections.abc import Iterable

from relibra.planning import ExecutionReport
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.documents import decode_report, encode_report
from relibra.store.keys import JobKeys


class Reports(Connected):
    """Execution reports, one a rank and phase."""

    @raises_unavailable
    async def put_report(self, job_id: str, report: ExecutionReport) -> None:
        """Keep what a rank did in one phase; a second report of the same rank and phase replaces the first.

        A report for a step that is not there, or no longer, is dropped: nobody would see it expire.
        """
        keys = JobKeys(job_id)
        if await self._redis.zscore(keys.of("steps"), str(report.step)) is None:
            return
        field = f"{report.phase}/{report.ep_group}/{report.ep_rank}"
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.step(report.step, "reports"), field, encode_report(report))
        pipe.hset(keys.step(report.step, "realised"), field, report.realised_load_ML.astype("<i8").tobytes())
        await pipe.execute()

    @raises_unavailable
    async def get_reports(self, job_id: str, step: int) -> list[ExecutionReport]:
        """Return the reports of a step by phase, EP group and rank."""
        keys = JobKeys(job_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(keys.step(step, "reports"))
        pipe.hgetall(keys.step(step, "realised"))
        documents, realised = await pipe.execute()
        reports = [decode_report(step, document, realised[field]) for field, document in documents.items()]
        return sorted(reports, key=lambda each: (each.phase, each.ep_group, each.ep_rank))

    @raises_unavailable
    async def num_reports(self, job_id: str, steps: Iterable[int]) -> list[int]:
        """Return how many reports each of some steps has, in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hlen(JobKeys(job_id).step(step, "reports"))
        return [int(number) for number in await pipe.execute()] if len(pipe) else []
