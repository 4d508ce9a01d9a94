"""Stored execution reports, read a few at a time: a step may have those of thousands of ranks."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial

import numpy as np

from relibra.errors import Corrupt, LimitExceeded
from relibra.planning import ExecutionReport, Phase
from relibra.planning.execution import Execution, ExecutionSums
from relibra.store.array_codec import PackedArray
from relibra.store.attempts import Attempts
from relibra.store.connection import raises_unavailable
from relibra.store.documents import decode_execution_report, decode_execution_sum
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import JobRecord
from relibra.store.seal import unseal

REPORTS_PER_READ = 256
"""How many reports are read at a time."""
READ_SIZE_BYTES = 2 << 20
"""How much the packed loads that are read at a time may take; a larger one is read alone."""
MAX_LIST_SIZE_BYTES = 16 << 20
"""How much a list of reports may take, with its loads unpacked."""

_Stored = tuple[bytes, bytes, bytes | None]
"""Field, document and load of a report."""


class StoredReports(Attempts):
    """Reads the reports of steps, and their sums."""

    @raises_unavailable
    async def sum_reports(self, job: JobRecord, step: int, *, phase: Phase | None = None) -> list[Execution]:
        """Return what the ranks did in a step as far as they reported, by phase in the order of execution.

        A few reports are in memory at a time (`REPORTS_PER_READ`, `READ_SIZE_BYTES`), decoded in a worker thread.

        Args:
            job: the attempt of the step.
            step: the step.
            phase: only this phase, if given.

        Raises:
            Corrupt: a report is not the one that was stored.
        """
        sums, decode = ExecutionSums(job.cluster), partial(_decode, job, step)
        async for some in self._read(job, step, with_loads=True, phase=phase):
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
            LimitExceeded: the reports take more than `MAX_LIST_SIZE_BYTES`.
            Corrupt: a report is not the one that was stored.
        """
        found: list[ExecutionReport] = []
        size_bytes = 0

        def decode(some: list[_Stored]) -> None:
            nonlocal size_bytes
            for each in some:
                found.append(_decode(attempt, step, each))
                size_bytes += len(each[1]) + found[-1].realised_load_ML.nbytes
                if size_bytes > MAX_LIST_SIZE_BYTES:
                    raise LimitExceeded(
                        f"the reports of step {step} of job {attempt.job_id!r} take more than {MAX_LIST_SIZE_BYTES} "
                        "bytes; ask for one phase and one rank"
                    )

        async for some in self._read(attempt, step, with_loads=with_loads, phase=phase, ep_rank=ep_rank):
            await asyncio.to_thread(decode, some)
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
        """Yield some reports at a time, each once, without order."""
        keys = AttemptKeys.of_attempt(attempt)
        reports, realised = keys.step(step, "reports"), keys.step(step, "realised")
        fields = [each for each in await self._redis.hkeys(reports) if _is_wanted(each, phase, ep_rank)]
        for start in range(0, len(fields), REPORTS_PER_READ):
            some = fields[start : start + REPORTS_PER_READ]
            for few in await self._fitting(realised, some) if with_loads else [some]:
                pipe = self._redis.pipeline(transaction=False)
                pipe.hmget(reports, few)
                if with_loads:
                    pipe.hmget(realised, few)
                documents, *found = await pipe.execute()
                loads = found[0] if with_loads else [None] * len(few)
                yield [
                    (field, document, load)
                    for field, document, load in zip(few, documents, loads, strict=True)
                    if document is not None and (load is not None or not with_loads)  # the step may expire meanwhile
                ]

    async def _fitting(self, realised: str, fields: list[bytes]) -> list[list[bytes]]:
        """Split fields so that the loads of each part take at most `READ_SIZE_BYTES`, or are a single one."""
        pipe = self._redis.pipeline(transaction=False)
        for field in fields:
            pipe.hstrlen(realised, field)
        parts, part_bytes = list[list[bytes]](), READ_SIZE_BYTES + 1
        for field, size_bytes in zip(fields, await pipe.execute(), strict=True):
            part_bytes += size_bytes
            if part_bytes > READ_SIZE_BYTES:
                parts, part_bytes = [*parts, []], size_bytes
            parts[-1].append(field)
        return parts

    @raises_unavailable
    async def is_applied(self, attempt: AttemptId, step: int) -> bool | None:
        """Return whether any rank says that it applied the plan of a step; None if no rank has reported.

        A report that is not the one that was stored says nothing.
        """

        def has_applied(some: list[_Stored]) -> bool:
            for each in some:
                with suppress(Corrupt):
                    if _decode(attempt, step, each).applied:
                        return True
            return False

        has_reports = None
        async for some in self._read(attempt, step, with_loads=False):
            has_reports = False
            if await asyncio.to_thread(has_applied, some):
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
    async def get_executions(self, attempt: AttemptId, steps: Iterable[int]) -> list[list[Execution] | Corrupt]:
        """Return, for each of some steps, the phases that all ranks have reported, in the order of execution.

        This is one round trip. A step one of whose sums is not the one that was stored has the error in its place.
        """
        pipe, numbers = self._redis.pipeline(transaction=False), list(steps)
        for step in numbers:
            pipe.hgetall(AttemptKeys.of_attempt(attempt).step(step, "executed"))
        found = await pipe.execute() if numbers else []
        return [_sums(attempt, step, sums) for step, sums in zip(numbers, found, strict=True)]


def _sums(attempt: AttemptId, step: int, sums: dict[bytes, bytes]) -> list[Execution] | Corrupt:
    what = f"of step {step} of job {attempt.job_id!r}"
    try:
        found = [
            decode_execution_sum(unseal(sealed, f"the sum of phase {phase.decode()} {what}"))
            for phase, sealed in sums.items()
        ]
    except Corrupt as error:
        return error
    return sorted(found, key=lambda each: each.phase)


def _is_wanted(field: bytes, phase: Phase | None, ep_rank: int | None) -> bool:
    """Return whether a report, by its field `phase/group/rank`, is of a phase and a rank; None wants any."""
    of_phase, _, rank = field.decode().split("/")
    return phase in (None, of_phase) and (ep_rank is None or ep_rank == int(rank))


def _decode(attempt: AttemptId, step: int, stored: _Stored) -> ExecutionReport:
    field, document, load = stored
    what = f"report {field.decode()} of step {step} of job {attempt.job_id!r}"
    load_ML = None if load is None else PackedArray.from_bytes(load, f"the load in {what}").unpack().astype(np.int64)
    return decode_execution_report(step, unseal(document, what), load_ML)
