"""What a search of packing may change, and how much it may try.

X ranks on which sequences may start.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.schedule import Freedom, PackingRules, Schedule

MOVE, SWAP_IN_ROW, SWAP = 0, 1, 2
"""A sequence moves to another rank of its row, or changes places with one of its row, or with any. Compiled code holds
these numbers, so they never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes that a search may try."""

    source_X: NDArray[np.int64]
    """The ranks to which sequences may move, rising."""
    kind_4: NDArray[np.int64]
    """What four tries do, on average."""
    max_work: int
    """The most numbers that one search compares."""

    @classmethod
    def under(cls, rules: PackingRules, start: Schedule, max_work: int) -> "Changes":
        """Return the changes of `start` that keep to `rules`."""
        across = SWAP if rules.freedom is Freedom.MICRO_BATCHES else SWAP_IN_ROW
        first = SWAP_IN_ROW if rules.keeps_counts else MOVE
        return cls(
            source_X=np.unique(start.source_rank_S).astype(np.int64),
            kind_4=np.array([first, SWAP_IN_ROW, across, across]),
            max_work=max_work,
        )
