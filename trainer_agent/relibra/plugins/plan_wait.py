"""How long a pass waits for its plan: no longer than the plan could save."""

import time
from collections.abc import Callable

from relibra.agent import Phase, StepOutcome

_LEAST = 0.01
"""The part of a pass that it may wait however little the last plan gained: loads may have changed since."""


def most_wait_s(limit_s: float, pass_s: float | None, expected_gain: float) -> float:
    """Return the longest time that a pass may wait for its plan.

    A pass in which nothing but experts took time would save its own time times the gain. Without a plan of its own it
    keeps the last one, and may save much of that anyway.

    Args:
        limit_s: the longest time in any case, and for a pass of which nothing is known.
        pass_s: how long the last pass of this phase took; None if there was none, or none under a plan.
        expected_gain: what experts save under the last plan, as a part of their time under it.
    """
    return limit_s if pass_s is None else min(limit_s, pass_s * max(expected_gain, _LEAST))


class PlanWait:
    """Measures passes, to know how long the next one may wait for its plan.

    Args:
        limit_s: the longest wait that the user allows.
        clock: seconds that only grow.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._pass_s = dict[Phase, float]()
        self._expected_gain = 0.0
        self._running: tuple[Phase, float] | None = None

    def limit_s(self, phase: Phase) -> float:
        """Return how long a pass of this phase may wait."""
        return most_wait_s(self._limit_s, self._pass_s.get(phase), self._expected_gain)

    def begin(self, phase: Phase, outcome: StepOutcome) -> None:
        """Note that a pass begins, with or without a plan."""
        if outcome.applied is not None or outcome.kept is not None:
            self._expected_gain, self._running = outcome.expected_gain, (phase, self._clock())

    def end(self) -> None:
        """Note that the last pass has ended, if it has not before."""
        if self._running is not None:
            phase, began_s = self._running
            self._pass_s[phase], self._running = self._clock() - began_s, None
