"""Stored execution reports, read a few at a time: a step may have those of thousands of ranks."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial

from relibra.errors import Corrupt, LimitExceeded
from relibra.planning import ExecutionReport, Phase
from relibra.planning.execution import Execution, ExecutionSums
from relibra.store.attempts import Attempts
from relibra.store.connection import raises_unavailable
from relibra.store.documents import decode_execution_report, decode_execution_sum
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import JobRecord
from relibra.store.seal import unseal

REPORTS_PER_READ = 16
"""How many reports a sum holds at a time. The load of one may take 8 bytes for each cell of a step."""
MAX_READ_SIZE_BYTES = 16 << 20
"""How much a list of reports may take, as stored."""

_Stored = tuple[bytes, bytes, bytes | None]
"""Field, document and load of a report."""


class StoredReports(Attempts):
    """Reads the reports of steps, and their sums."""

    @raises_unavailable
    async def sum_reports(self, job: JobRecord, step: int) -> list[Execution]:
        """Return what the ranks did in a step as far as they reported, by phase in the order of execution.

        At most `REPORTS_PER_READ` reports are in memory at a time, decoded in a worker thread.

        Raises:
            Corrupt: a report is not the one that was stored.
        """
        sums, decode = ExecutionSums(job.cluster), partial(_decode, job, step)
        async for some in self._read(job, step, with_loads=True):
            await asyncio.to_thread(lambda reports: sums.add(map(decode, reports)), some)
        return await asyncio.to_thread(sums.executions)

    @raises_unavailable
    async def get_reports(
        self,
        attempt: AttemptId,
        step: int,
        *,
        phase: Phase | None = None,
        ep_rank: int | None = None,
        with_loads: bool = True,
    ) -> list[ExecutionReport]:
        """Return the reports of a step, sorted by phase, EP group and rank.

        Args:
            attempt: the attempt of the step.
            step: the step.
            phase: only reports of this phase, if given.
            ep_rank: only reports of this rank, if given.
            with_loads: whether to read the realised loads, which are most of the bytes; they are `[0, 0]` otherwise.

        Raises:
            LimitExceeded: the reports take more than `MAX_READ_SIZE_BYTES`.
            Corrupt: a report is not the one that was stored.
        """
        found: list[ExecutionReport] = []
        decode, size_bytes = partial(_decode, attempt, step), 0
        async for some in self._read(attempt, step, with_loads=with_loads, phase=phase, ep_rank=ep_rank):
            size_bytes += sum(len(document) + len(load or b"") for _, document, load in some)
            if size_bytes > MAX_READ_SIZE_BYTES:
                raise LimitExceeded(
                    f"the reports of step {step} of job {attempt.job_id!r} take more than {MAX_READ_SIZE_BYTES} bytes; "
                    "ask for one phase and one rank"
                )
            found += await asyncio.to_thread(lambda reports: list(map(decode, reports)), some)
        return sorted(found, key=lambda each: (each.phase, each.ep_group, each.ep_rank))

    async def _read(
        self,
        attempt: AttemptId,
        step: int,
        *,
        with_loads: bool,
        phase: Phase | None = None,
        ep_rank: int | None = None,
    ) -> AsyncIterator[list[_Stored]]:
        """Yield about `REPORTS_PER_READ` reports at a time, each once, without order."""
        keys, cursor, seen = AttemptKeys.of_attempt(attempt), 0, set[bytes]()
        while True:
            cursor, documents = await self._redis.hscan(
                keys.step(step, "reports"),
                cursor,
                match=f"{phase or '*'}/*/{'*' if ep_rank is None else ep_rank}",
                count=REPORTS_PER_READ,
            )
            # Redis may name a field twice while its table grows.
            fields = [each for each in documents if each not in seen]
            seen.update(fields)
            if fields:
                loads: list[bytes | None] = [None] * len(fields)
                if with_loads:
                    loads = await self._redis.hmget(keys.step(step, "realised"), fields)
                yield [
                    (field, documents[field], load)
                    for field, load in zip(fields, loads, strict=True)
                    if load is not None or not with_loads  # the step may expire between the two reads
                ]
            if not cursor:
                return

    async def is_applied(self, attempt: AttemptId, step: int) -> bool | None:
        """Return whether any rank says that it applied the plan of a step; None if no rank has reported.

        A report that is not the one that was stored says nothing.
        """
        has_reports = None
        async for some in self._read(attempt, step, with_loads=False):
            has_reports = False
            for each in some:
                with suppress(Corrupt):
                    if _decode(attempt, step, each).applied:
                        return True
        return has_reports

    @raises_unavailable
    async def num_reports(self, attempt: AttemptId, steps: Iterable[int]) -> list[int]:
        """Return how many reports each of some steps has, in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hlen(AttemptKeys.of_attempt(attempt).step(step, "reports"))
        return [int(number) for number in await pipe.execute()] if len(pipe) else []

    @raises_unavailable
    async def get_executions(self, attempt: AttemptId, steps: Iterable[int]) -> list[list[Execution]]:
        """Return, for each of some steps, the phases that all ranks have reported, in the order of execution.

        Raises:
            Corrupt: a sum is not the one that was stored.
        """
        pipe, numbers = self._redis.pipeline(transaction=False), list(steps)
        for step in numbers:
            pipe.hgetall(AttemptKeys.of_attempt(attempt).step(step, "executed"))
        found = await pipe.execute() if numbers else []
        return [
            sorted(
                (
                    decode_execution_sum(
                        unseal(sealed, f"the sum of phase {phase.decode()} of step {step} of job {attempt.job_id!r}")
                    )
                    for phase, sealed in sums.items()
                ),
                key=lambda each: each.phase,
            )
            for step, sums in zip(numbers, found, strict=True)
        ]


def _decode(attempt: AttemptId, step: int, stored: _Stored) -> ExecutionReport:
    field, document, load = stored
    what = f"report {field.decode()} of step {step} of job {attempt.job_id!r}"
    return decode_execution_report(
        step, unseal(document, what), None if load is None else unseal(load, f"the load in {what}")
    )
