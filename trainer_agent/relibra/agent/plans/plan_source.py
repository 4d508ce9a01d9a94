"""Where an agent gets its plans from, and where its reports go."""

from typing import Protocol

from relibra.planning import ExecutionReport, RankPlan


class PlanSource(Protocol):
    """One rank's source of plans. No method may block beyond what its docstring says; none raises."""

    def prefetch(self, step: int) -> None:
        """Start getting the plan of `step`; returns at once."""

    def wait(self, step: int, timeout_s: float) -> tuple[RankPlan | None, str]:
        """Return the plan of `step`, or None with the reason after at most `timeout_s`."""

    def report(self, report: ExecutionReport) -> None:
        """Hand over a report; returns at once, and the report may get lost."""

    def close(self) -> None:
        """Stop, within a few seconds."""
