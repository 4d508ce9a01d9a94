"""Which attempt of a job a viewer looks at, as a pure decision."""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.errors import NotFound, UnknownJob
from relibra.store import Attempt, JobRecord, Refusal, Refused
from relibra.store.attempts import write_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChoice:
    """The attempt that a viewer looks at, and the job's other attempts."""

    attempts: Sequence[Attempt]
    """All attempts whose data is kept, newest first; at least one."""
    chosen: Attempt

    @property
    def job(self) -> JobRecord:
        """The job as the chosen attempt registered it."""
        return self.chosen

    @property
    def current(self) -> Attempt:
        """The current attempt of the job."""
        return self.attempts[0]

    @property
    def is_over(self) -> bool:
        """Whether another attempt began after the chosen one."""
        return self.chosen.epoch != self.current.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSteps(Attempt):
    """An attempt and how far it came."""

    first_step: int | None
    """The first step that is kept, if only as a summary; None without steps."""
    last_step: int | None
    """The last step that is kept."""
    num_planned_steps: int
    """Plans of this attempt and of those that it went back from, also of expired steps."""


def choose_attempt(job_id: str, attempts: Sequence[Attempt], number: int | None) -> AttemptChoice:
    """Choose an attempt of a job by its number; None chooses the current attempt.

    Args:
        job_id: the job.
        attempts: its attempts, newest first; none if the job is not registered.
        number: the number of the wanted attempt.

    Raises:
        UnknownJob: the job is not registered.
        NotFound: the attempt is not kept, or has not begun yet; the text says which.
    """
    if not attempts:
        raise UnknownJob(f"job {job_id!r} is not registered")
    current, oldest = attempts[0], attempts[-1]
    for attempt in attempts:
        if number in (None, attempt.number):
            return AttemptChoice(attempts=attempts, chosen=attempt)
    if number is not None and number > current.number:
        raise NotFound(f"job {job_id!r} has no attempt {number}: attempt {current.number} is current")
    kept = f"attempts {oldest.number} to {current.number} are" if len(attempts) > 1 else f"attempt {current.number} is"
    raise NotFound(f"attempt {number} of job {job_id!r} is not kept any more: {kept}")


def find_refused_launch(refusals: Sequence[Refusal]) -> Refusal | None:
    """Return the refusal of another launch under the same job id, or None if there was none."""
    return next((refusal for refusal in refusals if refusal.what is Refused.LAUNCH), None)


def explain_end(attempt: Attempt, successor: Attempt) -> str:
    """Return why an attempt ended, in words; `successor` is the attempt after it."""
    if successor.rolled_back_from == attempt.epoch:
        return f"the training went back to step {successor.rolled_back_to}, as attempt {successor.number}"
    if attempt.has_finished:
        return f"its training ended; attempt {successor.number} followed"
    if attempt.heard_at is None:
        return f"replaced by attempt {successor.number}"
    # The two times are of the clocks of a planner and of Redis.
    silent_s = max(0.0, successor.began_at - attempt.heard_at)
    return f"replaced by attempt {successor.number}, {write_duration(silent_s)} after it was last heard"
