"""The phases in which ranks gather the counts of a micro-batch ahead of its forward, the same on all ranks.

If one rank gathered ahead and another one cell by cell, both would wait forever, and no rank sees the replays of
others. So ranks look back. When a step opens, each rank offers the phases in which its replay told almost all that its
routers chose, in the last step with replicas. If all ranks that had replicas offer a phase, it gathers ahead. If a
replay then tells too little, its rank takes part all the same, with the counts that it has: tokens are split less
evenly, the log says so, and ranks gather cell by cell from the next step on.
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
        """The phases of which this rank's replay told almost all that routers chose, in the last step with replicas."""
        self.untold: frozenset[Phase] = frozenset()
        """The phases of which it did not."""
        self.exact: frozenset[Phase] = frozenset()
        """The phases of which a replay told everything, so that dispatchers may rely on it if all ranks say so."""
        self.agreed: frozenset[Phase] = frozenset()
        """The phases of the open step that gather ahead."""
        self._has_said = self._has_said_inexact = False

    def hear(self, offers: Sequence[Offer]) -> None:
        """Agree on the phases of the step that opens, from the offers of all ranks."""
        empty = frozenset[Phase]()
        foretold = empty.union(*(offer.foretold for offer in offers))
        self.agreed = foretold.difference(*(offer.untold for offer in offers))

    def note(self, phase: Phase, is_close: bool | None, step: int, *, is_exact: bool = False) -> None:
        """Remember whether a replay told almost all that routers chose in a phase, or all; None without replicas."""
        if is_close is None:
            return
        alone = frozenset((phase,))
        self.exact = self.exact | alone if is_exact else self.exact - alone
        self.foretold = self.foretold | alone if is_close else self.foretold - alone
        self.untold = self.untold - alone if is_close else self.untold | alone
        if is_close and not is_exact and not self._has_said_inexact:
            self._has_said_inexact = True
            log.info(
                "step %d, phase %s: the replay leaves some tokens to routers, so dispatchers wait for the numbers of "
                "tokens in every layer, as without replay",
                step,
                phase,
            )
        if phase in self.agreed and not is_close and not self._has_said:
            self._has_said = True
            log.warning(
                "step %d, phase %s: the replay did not tell what routers chose, and ranks relied on it. They split "
                "tokens over copies less evenly; results are right. From the next step on, ranks gather counts in "
                "every layer with copies, until the replay tells what routers choose again",
                step,
                phase,
            )
