"""How balanced a step was: without and with relibra, both from real loads, and against what its plan expected."""

from collections.abc import Sequence

from relibra.planning import Cause
from relibra.planning.execution import PhaseSummary
from relibra.planning.plan import Level
from relibra.store import PlanRecord

_MUCH = 1.2
"""Realised over expected imbalance, from which on a plan for known micro-batches was not executed as it was made."""
_CLOSE = 0.0005
_KNOWN = {
    Level.HISTORY: "from the loads of earlier steps",
    Level.STEP: "from the sequences of the step",
    Level.MICRO_BATCHES: "for the micro-batches of the step",
}


def last_complete(phases: Sequence[PhaseSummary]) -> PhaseSummary | None:
    """Return the last phase that all ranks have reported, or None."""
    return next((phase for phase in reversed(phases) if phase.imbalance is not None), None)


def describe_balance(phase: PhaseSummary) -> str | None:
    """Say how balanced a phase was, without and with relibra; None until all ranks have reported."""
    if phase.imbalance is None:
        return None
    if phase.imbalance_plain is None:
        return f"imbalance in phase {phase.phase} was {phase.imbalance:.3f}"
    without = f"it would have been {phase.imbalance_plain:.3f} without relibra"
    return f"imbalance in phase {phase.phase} was {phase.imbalance:.3f}; {without}"


def describe_expectation(phase: PhaseSummary, applied: PlanRecord | None) -> str | None:
    """Say what the plan that ranks applied expected of a phase, and how right that was; None without either.

    Where the micro-batches were not known, the difference is the accuracy of the forecast.
    """
    if applied is None or phase.imbalance is None or phase.applied != applied.id:
        return None
    expected, level = applied.prediction.imbalance_after, applied.prediction.level
    text = f"the plan expected {expected:.3f}, {_KNOWN[level]}"
    if level is Level.MICRO_BATCHES:
        return text
    error = phase.imbalance / expected - 1
    if abs(error) < _CLOSE:
        return f"{text}: the forecast was right"
    return f"{text}: the forecast was {abs(error):.1%} too {'low' if error > 0 else 'high'}"


def describe_memory(phase: PhaseSummary, applied: PlanRecord | None) -> str | None:
    """Say how much more the hottest rank kept than the mean, and what its plan expected; None if it kept nothing."""
    if phase.cum_overload is None:
        return None
    text = f"the hottest rank kept {phase.cum_overload:.2f} times as many token copies at once as the mean rank"
    expected = None if applied is None or phase.applied != applied.id else applied.prediction.memory
    if expected is None:
        return text
    before, after = expected.before.cum_overload, expected.after.cum_overload
    return f"{text}; its plan expected {after:.2f}, and {before:.2f} without relibra"


def describe_excess(phase: PhaseSummary, applied: PlanRecord | None) -> str | None:
    """Return by how much the realised imbalance exceeds that of a plan for known micro-batches, or None.

    Plans for which less was known are forecasts: see `describe_expectation`.
    """
    if applied is None or phase.imbalance is None or phase.applied != applied.id:
        return None
    expected = applied.prediction.imbalance_after
    if applied.prediction.level is not Level.MICRO_BATCHES or phase.imbalance <= expected * _MUCH:
        return None
    return f"imbalance was {phase.imbalance:.3f} in phase {phase.phase}, but {expected:.3f} was planned"


_INTENDED = {
    Cause.UNSCHEDULED: "kept what they had, because nobody scheduled the step, and nothing was planned from earlier "
    "steps yet",
    Cause.MEASURING: "ran plain, to measure whether planned steps are faster",
    Cause.NOT_FASTER: "ran plain, because planned steps were measured not to be faster",
    Cause.OBSERVING: "ran as without relibra: the job only observes",
}


def describe_intended(phase: PhaseSummary) -> str | None:
    """Say which ranks applied no plan, and were not to apply one; None if there are no such ranks."""
    said = [f"{number} of {phase.num_expected} ranks {_INTENDED[cause]}" for cause, number in phase.intended.items()]
    return f"in phase {phase.phase} {'; '.join(said)}" if said else None
