"""Packings that callers wait for until a solver is free."""

import asyncio
import time
from dataclasses import dataclass

from relibra.errors import RelibraError
from relibra.planner.solve.packing import PackTask
from relibra.planning import Schedule

Packed = tuple[Schedule, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitingPack:
    """A packing that a caller waits for. It is done when it is packed or refused, or when the caller has gone."""

    task: PackTask
    submitted_at: float
    packed: asyncio.Future[Packed]

    @property
    def job_id(self) -> str:
        """The job whose sequences are to be packed."""
        return self.task.job.job_id

    def answer(self, packed: Packed) -> None:
        """Give the caller the packing, if the caller still waits."""
        if not self.packed.done():
            self.packed.set_result(packed)

    def refuse(self, error: Exception) -> None:
        """Let the caller know why there is no packing, if the caller still waits."""
        if not self.packed.done():
            self.packed.set_exception(error)


class PackQueue:
    """The packings that no solver has taken yet. For one event loop."""

    def __init__(self) -> None:
        self._waiting: list[WaitingPack] = []

    def add(self, task: PackTask) -> WaitingPack:
        """Let a packing wait for a solver."""
        packed: asyncio.Future[Packed] = asyncio.get_running_loop().create_future()
        waiting = WaitingPack(task=task, submitted_at=time.time(), packed=packed)
        self._waiting.append(waiting)
        return waiting

    def waiting(self) -> list[WaitingPack]:
        """Return the packings whose callers still wait, oldest first."""
        self._waiting = [each for each in self._waiting if not each.packed.done()]
        return self._waiting

    def take(self, job_id: str) -> WaitingPack | None:
        """Return the oldest packing of a job, which then waits no more; None if the job has none."""
        found = next((each for each in self.waiting() if each.job_id == job_id), None)
        if found is not None:
            self._waiting.remove(found)
        return found

    def refuse_all(self, error: RelibraError) -> None:
        """Let all callers know why there is no packing."""
        for each in self.waiting():
            each.refuse(error)
