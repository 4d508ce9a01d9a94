"""What a split of experts into groups costs, in tokens.

The objective is `sum_m max_g load[m, g]`: the tokens of the largest group of every row, summed over rows. Where
dispatch has a price, the copies that enter or leave the busiest group of every row are added at that price. Where moves
have one, so are the experts that leave their group: a search then moves only those that are worth it.

M rows, E experts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.placement.partition import largest_groups
from relibra.planning.traffic import GroupTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The price of experts that leave their group."""

    from_E: NDArray[np.int32]
    """The group of every expert before."""
    price: int
    """What a move must save, in tokens of the largest group, summed over rows."""

    def tokens(self, group_E: NDArray[np.int32]) -> int:
        """Return what the moves of a split must save."""
        return int((group_E != self.from_E).sum()) * self.price


def objective(
    load_ME: NDArray[np.integer],
    group_E: NDArray[np.int32],
    num_groups: int,
    traffic: GroupTraffic | None = None,
    moves: Moves | None = None,
) -> int:
    """Return the objective of a split, in tokens. Args as those of `swap_search.improve`."""
    tokens = largest_groups(load_ME, group_E, num_groups)
    if traffic is not None:
        tokens += traffic.tokens(int(traffic.busiest_M(load_ME, group_E).sum()))
    return tokens if moves is None else tokens + moves.tokens(group_E)
