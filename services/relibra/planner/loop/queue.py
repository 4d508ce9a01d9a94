"""The one queue before the solvers of a planner: steps that wait for a plan, and packings that callers wait for."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from relibra.errors import RelibraError
from relibra.planner.solve.packing import PackTask
from relibra.planning import Schedule
from relibra.store import PendingStep

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

    def answer(self, answer: Packed | Exception) -> None:
        """Give the caller the packing, or the reason why there is none, if the caller still waits."""
        if self.packed.done():
            return
        if isinstance(answer, Exception):
            self.packed.set_exception(answer)
        else:
            self.packed.set_result(answer)


class SolverQueue:
    """Decides which job takes the next solver, and holds the packings that no solver has taken yet.

    It belongs to one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._packs: list[WaitingPack] = []
        self._last_turn: dict[str, int] = {}
        """A rising number for the last turn of each job that waits."""
        self._num_turns = 0
        self._waits_since: dict[str, float] = {}

    def add(self, task: PackTask) -> asyncio.Future[Packed]:
        """Let a packing wait for a solver; return what its caller awaits."""
        packed: asyncio.Future[Packed] = asyncio.get_running_loop().create_future()
        self._packs.append(WaitingPack(task=task, submitted_at=time.time(), packed=packed))
        return packed

    def next_turns(self, pending: Iterable[PendingStep], busy: Collection[str]) -> list[str]:
        """Return the jobs to work for, in order: that with the last turn longest ago, then that which waits longest.

        So jobs take turns, and a job that asks for much does not hold up a job that asks for little (S6). A job has one
        step solved or packed at a time, because each plan starts from the placement of the plan before.

        Args:
            pending: the steps that wait for a plan.
            busy: the jobs that a solver works for.
        """
        self._packs = [pack for pack in self._packs if not pack.packed.done()]
        since: dict[str, float] = {}
        waiting: list[PendingStep | WaitingPack] = [*pending, *self._packs]
        for work in waiting:
            since[work.job_id] = min(work.submitted_at, since.get(work.job_id, work.submitted_at))
        self._last_turn = {job_id: turn for job_id, turn in self._last_turn.items() if job_id in since}
        free = since.keys() - busy
        return sorted(free, key=lambda job_id: (self._last_turn.get(job_id, 0), since[job_id], job_id))

    def take_pack(self, job_id: str) -> WaitingPack | None:
        """Return the oldest packing of a job, which then waits no more; None if the job has none."""
        oldest = next((pack for pack in self._packs if pack.job_id == job_id and not pack.packed.done()), None)
        if oldest is not None:
            self._packs.remove(oldest)
        return oldest

    def begin_turn(self, job_id: str) -> float:
        """Note that a solver works for a job; return how long the job waited for one, in seconds.

        This is what more planners would shorten. It is 0 if this planner did not see the job wait.
        """
        self._num_turns += 1
        self._last_turn[job_id] = self._num_turns
        now = self._clock()
        return now - self._waits_since.pop(job_id, now)

    def note_unsolved(self, job_ids: Iterable[str]) -> None:
        """Note the jobs that have something to solve and no solver. A job that is not among them waits no more.

        A step that waits for an earlier step of its own job does not count, because no further planner would help it.
        """
        now = self._clock()
        self._waits_since = {job_id: self._waits_since.get(job_id, now) for job_id in job_ids}

    def refuse_packs(self, error: RelibraError) -> None:
        """Let all callers that wait for a packing know why there is none."""
        for pack in self._packs:
            pack.answer(error)
