"""The trials of a rank, one for each kind of step: all ranks hear the same times, so all choose the same mode."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from relibra.agent.plans.agreement import Offer, Spent
from relibra.agent.plans.outcome import StepOutcome
from relibra.agent.plans.trial import Mode, Trial
from relibra.planning import Cause, Phase

log = logging.getLogger(__name__)


class _Ran(NamedTuple):
    """A step of which the ranks have not told each other yet how long it took."""

    kind: Phase
    mode: Mode


class Trials:
    """Chooses how steps run. Its calls are equal on all ranks, and what it hears is, too.

    Steps are of one kind if they begin with the same phase: forwards alone take other times than updates.

    Args:
        is_on: whether plain steps are run at all; otherwise every step is planned.
        says: whether this rank says in its log what trials found.
    """

    def __init__(self, *, is_on: bool, says: bool) -> None:
        self._is_on, self._says = is_on, says
        self._trials = dict.fromkeys(Phase, Trial())
        self._ran: _Ran | None = None

    def plain(self, kind: Phase) -> tuple[Cause, str] | None:
        """Return why the next step of this kind runs plain; None if it is planned."""
        trial = self._trials[kind]
        if not self._is_on or trial.mode is Mode.PLANNED:
            return None
        if trial.is_running:
            return Cause.MEASURING, trial.reason
        return Cause.NOT_FASTER, f"{trial.reason}; the next trial comes in at most {trial.left} such steps"

    def note(self, kind: Phase, outcome: StepOutcome) -> None:
        """Remember how a step runs. A step that keeps an older plan though another was due says nothing of plans."""
        mode = Mode.PLAIN if outcome.applied is None and outcome.kept is None else Mode.PLANNED
        is_usual = mode is Mode.PLAIN or not outcome.causes or outcome.causes == (Cause.UNSCHEDULED,)
        self._ran = _Ran(kind, mode) if self._is_on and is_usual else None

    def drop(self) -> None:
        """Forget the step that was not told of, because the training repeats it."""
        self._ran = None

    def hear(self, offers: Sequence[Offer]) -> None:
        """Learn from all ranks how long the last step took: the slowest rank's time over the tokens of all."""
        ran, self._ran = self._ran, None
        spent = Spent.total([offer.spent for offer in offers])
        if ran is None or not spent.time_s or not spent.num_token_copies:
            return
        before = self._trials[ran.kind]
        after = self._trials[ran.kind] = before.after(ran.mode, spent.time_s / spent.num_token_copies)
        if before.is_running and not after.is_running:
            self._say(ran.kind, before, after)

    def _say(self, kind: Phase, before: Trial, after: Trial) -> None:
        is_news = after.verdict is not before.verdict
        if not self._says:
            return
        what = "planned" if after.verdict is Mode.PLANNED else "plain, without moves and copies,"
        log.log(
            logging.WARNING if is_news else logging.INFO,
            "steps that begin with phase %s run %s from now on: %s; the next trial comes in at most %d such steps",
            kind,
            what,
            after.reason,
            after.left,
        )
