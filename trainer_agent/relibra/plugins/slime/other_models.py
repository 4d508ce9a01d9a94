"""The models that take turns in the actor's modules before it: the reference, a teacher and an old actor."""

from typing import Any

from relibra.agent import Phase
from relibra.plugins.balanced_passes import BalancedPasses

_TAGS = {"ref", "teacher", "old_actor"}
"""The tags of their backups."""


class OtherModels:
    """Plans the passes of other models over a rollout: one step together, from the history of the actor's job.

    Their loads are part of that history. They route the same tokens nearly as the actor does, and only a forecast
    depends on it. The step begins before their weights come, because experts move with the optimizer's state, beside
    which the trained weights must be.

    Args:
        passes: the passes of the actor.
        args: the arguments of the job.
    """

    def __init__(self, passes: BalancedPasses, args: Any) -> None:
        self._passes = passes
        self._backuper: Any = None
        self._is_needed = getattr(args, "compute_advantages_and_returns", True)
        self._has_updated = False
        self.are_planned = False
        """Whether the pass that is open is theirs."""

    def follow(self, backuper: Any) -> None:
        """Find out from the backups of weights, by tag, which other models there are."""
        self._backuper = backuper

    @property
    def num_steps(self) -> int:
        """The steps at the planner in which they run over a rollout."""
        tags = [] if self._backuper is None else self._backuper.backup_tags
        return int(self._is_needed and not _TAGS.isdisjoint(tags))

    def begin(self) -> None:
        """Collective over all ranks: begin their pass over a rollout, while the trained weights are in the modules.

        The frameworks' `init` leaves the weights that it loaded last, so the first rollout runs plain.
        """
        if self._passes.agent is not None and self._has_updated and self.num_steps:
            self.are_planned = True
            self._passes.begin(Phase.RECOMPUTE)

    def go_on(self) -> None:
        """Have replicas of the pass fetch the weights of the model that is in the modules now."""
        if self.are_planned:
            self._passes.go_on_with_other_weights()

    def end(self, *, has_updated: bool = False) -> None:
        """Note that the passes of the actor follow, or have ended with an update."""
        self.are_planned = False
        self._has_updated |= has_updated
