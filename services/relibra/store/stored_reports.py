"""Stored execution reports, read a few at a time: a step may have those of thousands of ranks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Corrupt, LimitExceeded
from relibra.planning import ExecutionReport, Phase
from relibra.planning.execution import Execution, ExecutionSums
from relibra.store.array_codec import PackedArray
from relibra.store.attempts import Attempts
from relibra.store.documents import decode_execution_report
from relibra.store.json_codec import from_json
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import JobRecord
from relibra.store.seal import unseal

logger = logging.getLogger(__name__)

REPORTS_PER_READ = 256
"""How many reports are read at a time."""
READ_SIZE_BYTES = 2 << 20
"""How much the packed loads that are read at a time may take; a larger one is read alone."""
MAX_LIST_SIZE_BYTES = 16 << 20
"""How much a list of reports may take, with its loads unpacked."""

_MOST_LOOKED_AT = 64
"""Among how many earlier steps those with reports are looked for."""

_Stored = tuple[bytes, bytes, bytes | None, bytes | None]
"""Field, document, load, and load by expert of a report."""


class StoredReports(Attempts):
    """Reads the reports of steps, and their sums."""

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
        sums, decode = ExecutionSums(job.cluster, job.params.memory), partial(_decode, job, step)
        async for some in self._read(job, step, loads=("realised", "routed"), phase=phase):
            await asyncio.to_thread(lambda reports: sums.add(map(decode, reports)), some)
        return await asyncio.to_thread(sums.executions)

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
        reports: list[ExecutionReport] = []
        size_bytes = 0

        def decode(some: list[_Stored]) -> None:
            nonlocal size_bytes
            for stored in some:
                reports.append(_decode(attempt, step, stored))
                size_bytes += len(stored[1]) + reports[-1].realised_load_ML.nbytes
                if size_bytes > MAX_LIST_SIZE_BYTES:
                    raise LimitExceeded(
                        f"the reports of step {step} of job {attempt.job_id!r} take more than {MAX_LIST_SIZE_BYTES} "
                        "bytes; ask for one phase and one rank"
                    )

        loads = ("realised",) if with_loads else ()
        async for some in self._read(attempt, step, loads=loads, phase=phase, ep_rank=ep_rank):
            await asyncio.to_thread(decode, some)
        return sorted(reports, key=lambda report: (report.phase, report.ep_group, report.ep_rank))

    async def _read(
        self,
        attempt: AttemptId,
        step: int,
        *,
        loads: Sequence[str] = (),
        phase: Phase | None = None,
        ep_rank: int | None = None,
    ) -> AsyncIterator[list[_Stored]]:
        """Yield some reports at a time, each once, without order.

        Args:
            attempt: the attempt of the step.
            step: the step.
            loads: the arrays to read, in this order: none, "realised", or "realised" and "routed".
            phase: only reports of this phase, if given.
            ep_rank: only reports of this rank, if given.
        """
        keys = AttemptKeys.of_attempt(attempt)
        reports, arrays = keys.step(step, "reports"), [keys.step(step, name) for name in loads]
        fields = [field for field in await self._redis.hkeys(reports) if _is_wanted(field, phase, ep_rank)]
        for start in range(0, len(fields), REPORTS_PER_READ):
            some = fields[start : start + REPORTS_PER_READ]
            for few in await self._fitting(arrays, some) if arrays else [some]:
                columns = await self._answers(("hmget", key, few) for key in (reports, *arrays))
                rows = zip(few, *columns, strict=True)
                nothing = (None,) * (2 - len(arrays))
                yield [(*row, *nothing) for row in rows if None not in row]  # the step may expire meanwhile

    async def _fitting(self, arrays: Sequence[str], fields: list[bytes]) -> list[list[bytes]]:
        """Split fields so that the loads of each part take at most `READ_SIZE_BYTES`, or are those of one report."""
        lengths = await self._answers(("hstrlen", key, field) for field in fields for key in arrays)
        sizes = np.array(lengths, dtype=np.int64).reshape(len(fields), len(arrays)).sum(axis=1)
        parts, part_bytes = list[list[bytes]](), READ_SIZE_BYTES + 1
        for field, size_bytes in zip(fields, sizes.tolist(), strict=True):
            part_bytes += size_bytes
            if part_bytes > READ_SIZE_BYTES:
                parts, part_bytes = [*parts, []], size_bytes
            parts[-1].append(field)
        return parts

    async def micro_batches_before(self, job: JobRecord, step: int, num_steps: int) -> NDArray[np.int64]:
        """Return the loads of micro-batches of up to `num_steps` steps before `step`, int64 `[N, L, E]`, oldest first.

        They are the micro-batches of which ranks reported the load of every expert. A rank whose report is missing is
        missing in them. A damaged report is left out, and the log says so: a plan needs none in particular.
        """
        keys, shape = AttemptKeys.of_attempt(job), (0, job.model.num_layers, job.model.num_experts)
        micro_batches: list[NDArray[np.int64]] = []
        earlier = await self._redis.zrevrangebyscore(keys.of("steps"), f"({step}", "-inf", start=0, num=_MOST_LOOKED_AT)
        for number in map(int, earlier):
            key = keys.step(number, "routed")
            loads: dict[bytes, NDArray[np.int64]] = {}
            every = sorted(await self._redis.hkeys(key))
            for start in range(0, len(every), REPORTS_PER_READ):
                fields = every[start : start + REPORTS_PER_READ]
                values = await self._redis.hmget(key, fields)
                await asyncio.to_thread(_add_loads, loads, dict(zip(fields, values, strict=True)), job, number)
            micro_batches += [
                load_NLE[load_NLE.any(axis=(1, 2))] for _, load_NLE in sorted(loads.items(), reverse=True)
            ]
            num_steps -= bool(loads)
            if not num_steps:
                break
        return np.concatenate([np.zeros(shape, dtype=np.int64), *reversed(micro_batches)])

    async def is_applied(self, attempt: AttemptId, step: int) -> bool | None:
        """Return whether any rank says that it applied the plan of a step; None if no rank has reported.

        A report that is not the one that was stored says nothing.
        """

        def has_applied(some: list[_Stored]) -> bool:
            for stored in some:
                with suppress(Corrupt):
                    if _decode(attempt, step, stored).applied:
                        return True
            return False

        has_reports = None
        async for some in self._read(attempt, step):
            has_reports = False
            if await asyncio.to_thread(has_applied, some):
                return True
        return has_reports

    async def num_reports(self, attempt: AttemptId, steps: Iterable[int]) -> list[int]:
        """Return how many reports each of some steps has, in one round trip."""
        keys = AttemptKeys.of_attempt(attempt)
        return await self._answers(("hlen", keys.step(step, "reports")) for step in steps)

    async def get_executions(self, attempt: AttemptId, steps: Iterable[int]) -> list[list[Execution] | Corrupt]:
        """Return, for each of some steps, the phases that all ranks have reported, in the order of execution.

        This is one round trip. A step one of whose sums is not the one that was stored has the error in its place.
        """
        keys, numbers = AttemptKeys.of_attempt(attempt), list(steps)
        executed = await self._answers(("hgetall", keys.step(step, "executed")) for step in numbers)
        return [_sums(attempt, step, sums) for step, sums in zip(numbers, executed, strict=True)]


def _add_loads(
    loads: dict[bytes, NDArray[np.int64]], packed: dict[bytes, bytes | None], job: JobRecord, step: int
) -> None:
    """Add loads by expert, by field `phase/group/rank`, to those of their phase and group."""
    for field, value in packed.items():
        if value is None:  # the step has expired meanwhile
            continue
        what = f"the load by expert in report {field.decode()} of step {step} of job {job.job_id!r}"
        try:
            load_NLE = PackedArray.from_bytes(value, what).unpack()
        except Corrupt as error:
            logger.error("plans from history do without it: %s", error)
            continue
        group = field.rpartition(b"/")[0]
        known = loads.setdefault(group, np.zeros(load_NLE.shape, dtype=np.int64))
        if known.shape == load_NLE.shape:  # a rank that died in the middle ran fewer micro-batches
            known += load_NLE


def _sums(attempt: AttemptId, step: int, sums: dict[bytes, bytes]) -> list[Execution] | Corrupt:
    what = f"of step {step} of job {attempt.job_id!r}"
    try:
        executions = [
            from_json(Execution, unseal(sealed, f"the sum of phase {phase.decode()} {what}"))
            for phase, sealed in sums.items()
        ]
    except Corrupt as error:
        return error
    return sorted(executions, key=lambda execution: execution.phase)


def _is_wanted(field: bytes, phase: Phase | None, ep_rank: int | None) -> bool:
    """Return whether a report, by its field `phase/group/rank`, is of a phase and a rank; None wants any."""
    of_phase, _, rank = field.decode().split("/")
    return phase in (None, of_phase) and (ep_rank is None or ep_rank == int(rank))


def _decode(attempt: AttemptId, step: int, stored: _Stored) -> ExecutionReport:
    field, document, load, expert_load = stored
    what = f"report {field.decode()} of step {step} of job {attempt.job_id!r}"
    load_ML = None if load is None else PackedArray.from_bytes(load, f"the load in {what}").unpack().astype(np.int64)
    report = decode_execution_report(step, unseal(document, what), load_ML)
    if expert_load is None:
        return report
    unpacked = PackedArray.from_bytes(expert_load, f"the load by expert in {what}").unpack()
    return replace(report, expert_load_NLE=unpacked.astype(np.uint32))
