"""The JSON schemas of jobs and their attempts."""

from datetime import datetime

from pydantic import Field

from relibra.planning import Cluster, Model, PlanParams
from relibra.status.attempts import AttemptChoice
from relibra.status.balance import Balance
from relibra.status.health import JobHealth
from relibra.status.models import Shown, moment
from relibra.status.reader import JobGlance
from relibra.status.runbook import runbook_path
from relibra.status.savings_models import SavingsView
from relibra.store import Attempt, PackingNote


class AttemptView(Shown):
    """An attempt: one launch of a job's training."""

    number: int = Field(description="1, 2, 3, ... within the job; the value of `attempt` in URLs.", examples=[3])
    epoch: str = Field(description="Begins the ids of the attempt's plans.", examples=["5f3c0a9be1d24c77"])
    owner: str = Field(
        description="`<host>:<pid>` of the process that registered the attempt; empty if it did not say.",
        examples=["host-a:4711"],
    )
    began_at: datetime = Field(description="When the attempt was registered.")
    heard_at: datetime | None = Field(
        description="When one of its trainer processes last called a planner; null if that is unknown."
    )
    ended_at: datetime | None = Field(description="When the next attempt began; null for the current attempt.")
    rolled_back_to: int | None = Field(
        description="The step from which the same launch began again with this attempt; null if a launch began it.",
        examples=[None],
    )

    @classmethod
    def of(cls, attempt: Attempt) -> "AttemptView":
        """Return the view of an attempt."""
        return cls(
            number=attempt.number,
            epoch=f"{attempt.epoch:016x}",
            owner=attempt.owner,
            began_at=moment(attempt.began_at),
            heard_at=None if attempt.heard_at is None else moment(attempt.heard_at),
            ended_at=None if attempt.ended_at is None else moment(attempt.ended_at),
            rolled_back_to=attempt.rolled_back_to,
        )


class AttemptStepsView(AttemptView):
    """An attempt and how far it came."""

    first_step: int | None = Field(
        description="The first step that is kept, if only as a summary; null without steps.", examples=[100]
    )
    last_step: int | None = Field(description="The last step that is kept.", examples=[163])
    num_planned_steps: int = Field(
        description="Plans of this attempt and of those that it went back from, also of expired steps.",
        examples=[163],
    )

    @classmethod
    def show(cls, attempt: Attempt, kept_steps: tuple[int, int] | None, num_planned_steps: int) -> "AttemptStepsView":
        """Return the view of an attempt with its steps."""
        first, last = kept_steps or (None, None)
        return cls(
            **dict(AttemptView.of(attempt)), first_step=first, last_step=last, num_planned_steps=num_planned_steps
        )


class JobView(Shown):
    """A job, as one of its attempts registered it."""

    job_id: str = Field(examples=["qwen3-rl"])
    epoch: str = Field(description="The epoch of the attempt.", examples=["5f3c0a9be1d24c77"])
    registered_at: datetime = Field(description="When the attempt began.")
    attempt: AttemptView
    current_attempt: int = Field(description="The number of the current attempt.", examples=[3])
    model: Model
    cluster: Cluster
    params: PlanParams

    @classmethod
    def of(cls, choice: AttemptChoice) -> "JobView":
        """Return the view of a job."""
        job = choice.job
        return cls(
            job_id=job.job_id,
            epoch=f"{job.epoch:016x}",
            registered_at=moment(job.registered_at),
            attempt=AttemptView.of(choice.chosen),
            current_attempt=choice.current.number,
            model=job.model,
            cluster=job.cluster,
            params=job.params,
        )


class RefusedLaunchView(Shown):
    """Another launch under the same job id, which the planner refused because the current attempt is alive."""

    text: str = Field(examples=["host-b:99 launched this job too, while attempt 2 is alive; ..."])
    at: datetime = Field(description="When it was refused last.")


class PackingView(Shown):
    """How the newest packing that the job's driver asked for ended."""

    step: int = Field(description="The step that it was for.", examples=[12])
    is_packed: bool = Field(
        description="Whether the driver was given a packing; if not, it trains with the schedule of its framework."
    )
    headline: str = Field(examples=["Step 12 was packed"])
    text: str = Field(description="What packing gains, or why there is none.")
    at: datetime

    @classmethod
    def of(cls, note: PackingNote) -> "PackingView":
        """Return the view of a note."""
        return cls(step=note.step, is_packed=note.is_packed, headline=note.headline, text=note.text, at=moment(note.at))


class JobHealthView(JobView):
    """A job, its health, and whether its newest steps ran under their plans; both as of the end of an older attempt."""

    health: JobHealth
    runbook: str | None = Field(
        description="The path, at this service, of what to do about the state; null if there is nothing to do or the "
        "attempt is over.",
        examples=["/runbook#relibrajobstalled"],
    )
    balance: Balance
    packing: PackingView | None = Field(
        description="How the newest packing ended; null if no driver of the attempt asked for one."
    )
    refused_launch: RefusedLaunchView | None = Field(
        description="The newest launch that asked for the same job id in vain; null again when a schedule is accepted."
    )

    savings: SavingsView

    @classmethod
    def show(cls, glance: JobGlance) -> "JobHealthView":
        """Return the view of a job with its health."""
        refused = glance.refused_launch
        return cls(
            **dict(JobView.of(glance.choice)),
            health=glance.health,
            runbook=None if glance.choice.is_over else runbook_path(glance.health.verdict),
            balance=glance.balance,
            packing=None if glance.packing is None else PackingView.of(glance.packing),
            refused_launch=None if refused is None else RefusedLaunchView(text=refused.text, at=moment(refused.at)),
            savings=SavingsView.of(glance.saving, glance.choice.current.record),
        )
