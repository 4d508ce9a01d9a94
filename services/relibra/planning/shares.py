"""From which source ranks the tokens of every replica come.

There is one number per replica and source rank: gigabytes for hundreds of ranks. So shares are not kept but made row by
row, each time they are looked at; whoever needs those of one rank never holds those of all.

R EP ranks, Y replicas, B replicas of one block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShares:
    """Tokens of every replica by the rank they come from, int32 `[Y, R]`, as consecutive blocks `[B, R]`.

    Replicas are in the order of the plan's quotas. What no replica takes of a rank's tokens goes to their home. A
    forecast plan has fractions in place of tokens, see `fractions`.
    """

    num_ranks: int
    blocks: Callable[[], Iterator[NDArray[np.int32]]]
    """Starts again at the first block on every call."""

    @classmethod
    def stored(cls, share_YR: NDArray[np.int32]) -> "SourceShares":
        """Shares that lie in memory, as from a plan file."""
        return cls(num_ranks=share_YR.shape[-1], blocks=lambda: iter([share_YR]))

    def of_rank(self, rank: int) -> NDArray[np.int32]:
        """Shares of one source rank, `[Y]`."""
        parts = [np.zeros(0, dtype=np.int32), *(block_BR[:, rank] for block_BR in self.blocks())]
        return np.concatenate(parts)

    def to_array(self) -> NDArray[np.int32]:
        """All shares at once, `[Y, R]`."""
        return np.concatenate([np.zeros((0, self.num_ranks), dtype=np.int32), *self.blocks()])
