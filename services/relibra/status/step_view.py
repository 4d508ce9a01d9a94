"""A step as pages and JSON show it: its full data, or the summary that is left of it, and why."""

from dataclasses import dataclass

from relibra.status.health import write_duration
from relibra.status.views import fields_of
from relibra.store import Expired, ExpiryCause, StepSummary

_WHY = {
    ExpiryCause.STEPS: "newer steps took its place (retained_steps)",
    ExpiryCause.BYTES: "the steps of the job took more memory than they may (retained_bytes)",
    ExpiryCause.AGE: "it was older than steps may get (retained_s)",
    ExpiryCause.ATTEMPTS: "newer attempts of the job began",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView(StepSummary):
    """The state of a step, or what is left of it once it has expired."""

    num_kept_steps: int
    """How many steps of the attempt are kept in full."""

    @classmethod
    def of_summary(cls, step: StepSummary, num_kept_steps: int) -> "StepView":
        """Return the view of a step."""
        return cls(**fields_of(step), num_kept_steps=num_kept_steps)

    @property
    def expiry(self) -> str | None:
        """When and why the full data expired, and how many steps are kept in full; None while it is kept."""
        return None if self.expired is None else _explain_expiry(self.expired, self.num_kept_steps)


def _explain_expiry(expired: Expired, num_kept_steps: int) -> str:
    return (
        f"full data expired after {write_duration(expired.age_s)}, because {_WHY[expired.cause]}; only this summary "
        f"remains, and {num_kept_steps} steps are kept in full"
    )
