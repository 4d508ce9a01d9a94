"""Whether planned steps are faster than plain ones, decided from measured steps alone (N1). Pure: no clock, no ranks.

A plain step leaves every expert at the home that it has, and makes no copies. In a trial, plain and planned steps take
turns. The planned ones are faster if they win almost every comparison of a planned with a plain step (Mann-Whitney).
Otherwise steps run plain until the next trial. Trials come again when step times have drifted, and after a pause that
doubles as long as they find the same.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

NUM_EACH = 5
"""Steps of each mode in a trial, after one of each that does not count: it may compile, allocate, or move what lay."""
MOST_LOST = 4
"""How many of the 25 comparisons planned steps may lose. If both modes take the same time, a trial finds the planned
steps faster with probability 12/252 = 4.8 %, whatever the distribution of the noise; if they are slower, with less."""
FIRST_PAUSE, LONGEST_PAUSE = 50, 400
"""Steps between a trial and the next one."""
DRIFT = 1.1
"""The ratio of step times from which on times that overlap with none of the trial are a drift and no noise."""


class Mode(StrEnum):
    """How a step runs."""

    PLAIN = "plain"
    PLANNED = "planned"


_BOTH = frozenset(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The measurements of one kind of step: those of the present trial, or of the last one and the steps since.

    It is immutable.
    """

    verdict: Mode | None = None
    """The mode that the last trial chose; None in the first trial."""
    times: dict[Mode, tuple[float, ...]] = field(default_factory=lambda: dict.fromkeys(Mode, ()))
    """The seconds per token of the steps of the trial that count, by mode."""
    is_running: bool = True
    warming: frozenset[Mode] = _BOTH
    """The modes whose first step in this trial is still to come."""
    pause: int = 0
    """The length of the last pause, in steps."""
    left: int = 0
    """The steps that are left of it."""
    recent: tuple[float, ...] = ()
    """The seconds per token of the newest steps since the trial."""

    @property
    def mode(self) -> Mode:
        """How the next step runs."""
        if not self.is_running:
            assert self.verdict is not None
            return self.verdict
        plain, planned = len(self.times[Mode.PLAIN]), len(self.times[Mode.PLANNED])
        if plain != planned:
            return Mode.PLAIN if plain < planned else Mode.PLANNED
        return Mode.PLAIN if plain % 2 else Mode.PLANNED  # ABBA: a drift weighs on both alike

    @property
    def reason(self) -> str:
        """What the trial measured so far, for people."""
        plain, planned = self.times[Mode.PLAIN], self.times[Mode.PLANNED]
        if not plain or not planned:
            return "plain and planned steps take turns to measure which are faster"
        return (
            f"planned steps took {median(planned) / median(plain):.3f} times as long per token as plain ones (medians "
            f"of {len(planned)} and {len(plain)} steps; the planned one was slower in {self._num_lost} of "
            f"{len(planned) * len(plain)} pairs)"
        )

    def after(self, ran: Mode, s_per_token: float) -> "Trial":
        """Return what is known after another step.

        Args:
            ran: how the step ran, which need not be `mode`: a step may have had no plan.
            s_per_token: how long it took.
        """
        if not self.is_running:
            return self._rest(ran, s_per_token)
        if ran in self.warming:
            return replace(self, warming=self.warming - {ran})
        told = replace(self, times=self.times | {ran: (*self.times[ran], s_per_token)[-NUM_EACH:]})
        if told._num_lost > MOST_LOST:  # more steps could not turn it
            return told._decide(Mode.PLAIN)
        return told._decide(Mode.PLANNED) if min(map(len, told.times.values())) == NUM_EACH else told

    @property
    def _num_lost(self) -> int:
        return sum(slow >= fast for slow in self.times[Mode.PLANNED] for fast in self.times[Mode.PLAIN])

    def _decide(self, verdict: Mode) -> "Trial":
        pause = min(2 * self.pause, LONGEST_PAUSE) if verdict is self.verdict else FIRST_PAUSE
        return replace(self, verdict=verdict, is_running=False, pause=pause, left=pause, recent=())

    def _rest(self, ran: Mode, s_per_token: float) -> "Trial":
        recent = (*self.recent, s_per_token)[-NUM_EACH:] if ran is self.verdict else self.recent
        rested = replace(self, recent=recent, left=self.left - 1)
        if rested.left > 0 and not rested._has_drifted:
            return rested
        return Trial(verdict=self.verdict, pause=self.pause)

    @property
    def _has_drifted(self) -> bool:
        """Whether steps take other times than in the trial, or planned ones no less than plain ones took there."""
        assert self.verdict is not None
        before = self.times[self.verdict]
        if len(self.recent) < NUM_EACH:
            return False
        change = median(self.recent) / median(before)
        if max(self.recent) < min(before):
            return change < 1 / DRIFT
        most = DRIFT if self.verdict is Mode.PLAIN else min(DRIFT, median(self.times[Mode.PLAIN]) / median(before))
        return min(self.recent) > max(before) and change > most
