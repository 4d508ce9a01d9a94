"""The reports of a rank that wait until the planner takes them."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from relibra.agent.plans.trouble import Trouble
from relibra.planning import ExecutionReport

_MAX_REPORTS = 256


class QueuedReport(NamedTuple):
    """A report that waits until it is sent."""

    report: ExecutionReport
    epoch: int
    """The attempt in which the rank did what it reports; 0 for the attempt that the rank belongs to when it is sent."""


class WaitingReports:
    """Reports in the order in which they were made. If the planner stays away, the oldest ones are dropped."""

    def __init__(self) -> None:
        self._queue: deque[QueuedReport] = deque()
        self._dropped = Trouble("reports reach the planner again, after %d were dropped")

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[QueuedReport]:
        return iter(self._queue)

    @property
    def first(self) -> QueuedReport | None:
        """The report to send next."""
        return self._queue[0] if self._queue else None

    def add(self, report: ExecutionReport, epoch: int) -> None:
        """Append a report of the attempt `epoch`, as in `QueuedReport`."""
        if len(self._queue) >= _MAX_REPORTS:
            dropped = self._queue.popleft().report
            self._dropped.note(
                "away",
                "dropped the report of step %d, %s: the planner is away for too long",
                dropped.step,
                dropped.phase,
            )
        self._queue.append(QueuedReport(report, epoch))

    def is_answered(self, queued: QueuedReport) -> None:
        """Remove a report that the planner has taken or refused."""
        self._dropped.over()
        self.give_up(queued)

    def give_up(self, queued: QueuedReport) -> None:
        """Remove a report that cannot be sent, unless it was dropped meanwhile."""
        if self.first is queued:
            self._queue.popleft()

    def go_back(self, step: int) -> None:
        """Drop the reports of `step` and later steps, and let the others belong to the attempt that begins."""
        # The attempt in which they were made is over, so the planner takes nothing for it any more.
        self._queue = deque(waiting._replace(epoch=0) for waiting in self._queue if waiting.report.step < step)
