"""The source of a rank's plans, as the agent sees it."""

from typing import NamedTuple, Protocol

from relibra.planning import Cause, ExecutionReport, StepPlan


class PlanAnswer(NamedTuple):
    """The plan of a step for one rank, or why there is none."""

    plan: StepPlan | None
    reason: str
    """Why this plan or why none, for people."""
    lack: Cause = Cause.LATE
    """Why there is none, for programs."""


class PlanSource(Protocol):
    """The source of one rank's plans. Methods block no longer than their docstrings say, and raise nothing."""

    def prefetch(self, step: int) -> None:
        """Start to get the plan of `step`, and return at once."""

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        """Return the plan of `step`, or why there is none, after at most `timeout_s`."""

    def report(self, report: ExecutionReport) -> None:
        """Hand over a report, and return at once. The report may get lost."""

    def rollback(self, step: int) -> None:
        """Forget plans and reports of `step` and of later steps, which the training repeats; return at once."""

    def close(self) -> None:
        """Stop within a few seconds."""
