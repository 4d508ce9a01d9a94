"""The phases in which ranks gather the counts of a micro-batch ahead of its forward, the same on all ranks.

A rank that gathers ahead and one that gathers cell by cell would wait for each other for ever, and no rank can see what
the replays of others tell. So ranks look back. When a step opens, each offers the phases in which its replay told just
what its routers chose, when they last had replicas. If that holds on all ranks that had any, the phase gathers ahead.
If a replay then tells nothing, or something else, its rank takes part all the same, with the counts that it has: tokens
are split less evenly, the log says so, and from the next step on ranks gather cell by cell again.
"""

import logging
from collections.abc import Sequence

from relibra.agent.plans.agreement import Offer
from relibra.planning import Phase

log = logging.getLogger(__name__)


class ForetoldPhases:
    """What one rank remembers of its phases, and what all ranks have agreed on."""

    def __init__(self) -> None:
        self.foretold: frozenset[Phase] = frozenset()
        """The phases of which this rank's replay told all that routers chose, when they last had replicas."""
        self.untold: frozenset[Phase] = frozenset()
        """The phases of which it did not."""
        self.agreed: frozenset[Phase] = frozenset()
        """The phases of the open step that gather ahead."""
        self._has_said = False

    def hear(self, offers: Sequence[Offer]) -> None:
        """Agree on the phases of the step that opens, from the offers of all ranks."""
        empty = frozenset[Phase]()
        foretold = empty.union(*(offer.foretold for offer in offers))
        self.agreed = foretold.difference(*(offer.untold for offer in offers))

    def note(self, phase: Phase, is_exact: bool | None, step: int) -> None:
        """Remember whether a replay told of a phase just what routers chose; None if the phase had no replicas."""
        if is_exact is None:
            return
        alone = frozenset((phase,))
        self.foretold = self.foretold | alone if is_exact else self.foretold - alone
        self.untold = self.untold - alone if is_exact else self.untold | alone
        if phase in self.agreed and not is_exact and not self._has_said:
            self._has_said = True
            log.warning(
                "step %d, phase %s: before some forwards, the replay told nothing, or not what routers chose. Ranks "
                "had relied on it, so tokens were split over copies less evenly; results are right. From the next step "
                "on, ranks gather counts in every layer with copies, until the replay tells again what routers choose",
                step,
                phase,
            )
