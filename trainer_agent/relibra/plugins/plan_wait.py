"""How long a pass waits for its plan: no longer than the plan could save."""

import time
from collections.abc import Callable

from relibra.agent import Phase, StepOutcome

_LEAST = 0.01
"""The part of a pass that it may wait however little the last plan gained: loads may have changed since."""


def most_wait_s(limit_s: float, pass_s: float | None, gain: float) -> float:
    """Return the longest time that a pass may wait for its plan.

    If only experts took time, a pass would save its own time multiplied by the gain. A pass without a plan of its own
    keeps the last plan, which may save much of this anyway.

    Args:
        limit_s: the longest time in any case, and for the first pass, of which nothing is known.
        pass_s: how long such a pass takes; None if nobody knows.
        gain: what experts save at most under the plan, as a part of the time of the pass.
    """
    return limit_s if pass_s is None else min(limit_s, pass_s * max(gain, _LEAST))


class PlanWait:
    """Measures passes, with or without a plan, to know how long the next one may wait for its plan.

    A phase that has not run counts as long as the phase that ran last: an update takes longer than the pass before it,
    so its first wait is shorter than it could be.

    Until a plan says what it gains, the gain is the most that balance could save on R ranks, 1 - 1/R: the slowest rank
    has at most all tokens of a layer, and balance leaves 1/R of them on it.

    Args:
        limit_s: the longest wait that the user allows.
        num_ranks: R, the ranks of an EP group.
        clock: seconds that only grow.
    """

    def __init__(self, limit_s: float, num_ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._pass_s = dict[Phase, float]()
        self._gain = 1 - 1 / num_ranks
        self._phase, self._began_s = Phase.UPDATE, 0.0

    def limit_s(self, phase: Phase) -> float:
        """Return how long a pass of this phase may wait."""
        return most_wait_s(self._limit_s, self._pass_s.get(phase, self._pass_s.get(self._phase)), self._gain)

    def begin(self, phase: Phase, outcome: StepOutcome) -> None:
        """Note that a pass begins, with or without a plan."""
        if outcome.applied is not None or outcome.kept is not None:
            self._gain = outcome.expected_gain
        self._phase, self._began_s = phase, self._clock()

    def mark(self) -> None:
        """Note that the last pass has run until now: a micro-batch or the step of the optimizer has ended."""
        self._pass_s[self._phase] = self._clock() - self._began_s
