"""The GPU time that balancing saves, from what ranks did and how long it took. Pure functions.

Without balancing, the slowest rank of every cell would have computed more token copies, while the other ranks waited:

    saved = (imbalance without relibra / realised imbalance - 1) * GPU time in experts
            - GPU time in waits for plans, reorders and replicas

Both imbalances, the duration of phases and waits are the job's own. The imbalance without relibra is that of the few
micro-batches of which ranks report the load of every expert. The assumption is how much of a phase was GPU time in
experts: realised imbalance * token copies * the time of one by the cost model, and at most the whole phase.

Ranks still lose the rest by waiting for the slowest of each cell:

    lost = (1 - 1 / realised imbalance) * GPU time in experts

Dispatch is not counted: no rank reports what its adapter sent. Plans that count dispatch may trade balance for less
traffic, so the figure is then below what they save; the assumption says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from relibra.planning import Phase
from relibra.planning.execution import PhaseSummary
from relibra.store import JobRecord, StepSummary

_FORWARD_PASSES = {Phase.RECOMPUTE: 1, Phase.UPDATE: 3}
"""Compute of a phase, in forward passes; a backward counts as two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTime:
    """How long an expert computes one token copy in a forward pass."""

    us: float
    lacks_dispatch: bool = False
    """Whether plans of the job count the time of dispatch, which the saved time does not."""

    @classmethod
    def of(cls, job: JobRecord) -> "TokenTime | None":
        """Return the time by the cost model that a job registered; None if it registered none."""
        cost = job.params.cost
        if cost is None:
            return None
        return cls(us=cost.us_per_token, lacks_dispatch=cost.token_size_bytes > 0 and job.cluster.num_nodes > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What balancing saved in some steps. Times are GPU-seconds over all processes of the job."""

    saved_s: float = 0.0
    """Below 0 where balancing cost more than it saved."""
    lost_s: float = 0.0
    """What ranks waited for the slowest rank of each cell."""
    trained_s: float = 0.0
    """The phases of the steps that count."""
    expert_s: float = 0.0
    """The part of `trained_s` in which experts compute."""
    waited_s: float = 0.0
    """Waits for plans, reorders and replicas; they are already subtracted from `saved_s`."""
    num_steps: int = 0
    """Steps that count."""
    num_left_out: int = 0
    """Steps with reports that do not count, because something is not known."""

    def __add__(self, other: "Saving") -> "Saving":
        names = [field.name for field in fields(Saving)]
        return Saving(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def saved_gpu_hours(self) -> float | None:
        """The GPU-hours saved, below 0 where balancing cost more than it saved; None while no step counts."""
        return self.saved_s / 3600 if self.num_steps else None

    @property
    def lost_gpu_hours(self) -> float | None:
        """The GPU-hours that ranks still waited for slower ones; None while no step counts."""
        return self.lost_s / 3600 if self.num_steps else None


NOTHING = Saving()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSaving(Saving):
    """What balancing saved over all steps of a job that are kept, expired or not, in all of its attempts."""

    time: TokenTime | None
    """How long an expert of the current attempt computes one token copy; None if that is not known."""

    @property
    def assumption(self) -> str:
        """What the figure rests on, or why it is unknown."""
        return assumption(self, self.time)


def add_up(savings: Iterable[Saving]) -> Saving:
    """Return the sum of some savings."""
    return sum(savings, NOTHING)


def compute_saving(step: StepSummary, time: TokenTime | None) -> Saving:
    """Return what balancing saved in one step.

    A step without reports is nothing yet. A step counts if all ranks reported each phase that any rank reported.
    """
    if not step.phases:
        return NOTHING
    if time is None:
        return Saving(num_left_out=1)
    phases = [_of_phase(phase, time) for phase in step.phases]
    counted = [saving for saving in phases if saving is not None]
    if len(counted) < len(phases):
        return Saving(num_left_out=1)
    return add_up(counted) + Saving(num_steps=1)


def _of_phase(phase: PhaseSummary, time: TokenTime) -> Saving | None:
    if (
        phase.imbalance is None
        or phase.imbalance_plain is None
        or phase.num_token_copies is None
        or not phase.duration_s
    ):
        return None
    trained_s = phase.duration_s * phase.num_processes
    copy_s = _FORWARD_PASSES[phase.phase] * time.us / 1e6
    expert_s = min(trained_s, phase.imbalance * phase.num_token_copies * copy_s)
    waited_s = phase.waited_s * phase.num_processes
    return Saving(
        saved_s=(phase.imbalance_plain / phase.imbalance - 1) * expert_s - waited_s,
        lost_s=(1 - 1 / phase.imbalance) * expert_s,
        trained_s=trained_s,
        expert_s=expert_s,
        waited_s=waited_s,
    )


def assumption(saving: Saving, time: TokenTime | None) -> str:
    """Say what the GPU-hours saved rest on, or why they are unknown."""
    if time is None:
        return "GPU-hours saved are unknown, because the job registered no cost model (relibra calibrate)."
    num_reported = saving.num_steps + saving.num_left_out
    if not num_reported:
        return "No rank has reported a step yet."
    if not saving.num_steps:
        return f"GPU-hours saved are unknown: none of {num_reported} reported steps counts. {_WHAT_COUNTS}"
    text = (
        f"Assumes that one token copy takes {time.us:.3g} µs in a forward pass of an expert, by the cost model that "
        "the job registered, and twice as long in a backward pass, so that experts take "
        f"{saving.expert_s / saving.trained_s:.1%} of {write_hours(saving.trained_s)} GPU-hours of training. Waits for "
        f"plans, reorders and replicas, {write_hours(saving.waited_s)} GPU-hours, are subtracted."
    )
    if time.lacks_dispatch:
        text += (
            " The figure counts tokens of slowest ranks alone. Plans of this job also count dispatch between nodes, "
            "whose time no rank reports: what they save there is not in the figure, and balance that they give up for "
            "it is."
        )
    if saving.num_left_out:
        text += f" {saving.num_steps} of {num_reported} reported steps count. {_WHAT_COUNTS}"
    return text


_WHAT_COUNTS = "A step counts if it has reports of all ranks."


def write_hours(time_s: float) -> str:
    """Return seconds as a number of hours for people, with three decimals below 10 hours."""
    hours = time_s / 3600
    decimals = 3 if abs(hours) < 10 else 1 if abs(hours) < 1000 else 0
    return f"{round(hours, decimals) + 0.0:,.{decimals}f}"
