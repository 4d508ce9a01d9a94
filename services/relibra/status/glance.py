"""One attempt of a job in brief, as the overview, the page of the job, JSON and metrics show it."""

from dataclasses import dataclass, field

from relibra.errors import Corrupt
from relibra.planning.execution import Execution
from relibra.status.attempts import AttemptChoice
from relibra.status.balance import Balance
from relibra.status.health import JobHealth
from relibra.status.memory_forecasts import MemoryForecasts
from relibra.status.runbook import runbook_path
from relibra.status.savings import JobSaving
from relibra.store import Attempt, JobRecord, PackingNote, PlanRecord, Refusal, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGlance:
    """A job, its health, and whether its newest steps ran under their plans; both as of the end of an older attempt."""

    choice: AttemptChoice = field(repr=False)
    health: JobHealth
    balance: Balance
    packing: PackingNote | None
    """How far the newest packing has come; None if no driver of the attempt asked for one."""
    refused_launch: Refusal | None
    """An older launch of the job that still calls though its attempt is over; None again when a schedule is accepted,
    and once the attempt is over."""
    savings: JobSaving
    memory_forecasts: MemoryForecasts
    steps: list[StepRecord] = field(repr=False)
    """The newest steps, newest first."""
    executed_step: StepRecord | None = field(repr=False)
    """The newest step that has reports."""
    executed: list[Execution] = field(repr=False)
    applied: PlanRecord | None = field(repr=False)
    """The plan that the ranks of `executed_step` applied; None if they applied none, or if it is not kept."""
    damaged: dict[int, Corrupt] = field(repr=False)
    """The newest steps that have a report which was changed in Redis since it was stored, with the error."""

    @property
    def job(self) -> JobRecord:
        """The job as the attempt registered it."""
        return self.choice.job

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self.job.job_id

    @property
    def attempt(self) -> Attempt:
        """The attempt that is shown, with the shape that it registered."""
        return self.choice.chosen

    @property
    def current_attempt(self) -> int:
        """The number of the current attempt."""
        return self.choice.current.number

    @property
    def runbook(self) -> str | None:
        """The path, at this service, of what to do about the state; None if nothing is, or the attempt is over."""
        return None if self.choice.is_over else runbook_path(self.health.verdict)
