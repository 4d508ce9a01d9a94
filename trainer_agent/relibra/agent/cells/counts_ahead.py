"""What a replay tells of the tokens of a micro-batch before its forward, compared with what the routers then choose.

With replay, a rank can count the tokens of all cells of a micro-batch before the first of them runs, so that one
all-gather brings the counts of all of them. Routers may choose otherwise all the same: a replay may leave rows to them,
they may drop tokens, and a framework may change what they chose. Then counts that were gathered ahead are wrong, so
each cell is compared.

C cells of a micro-batch, T tokens of this rank, K top-k, E experts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.agent.cells.token_split import GatheredAhead

_MAP_BYTES = 1 << 26
"""The most memory of routing maps that are counted together."""


def count_ahead(expert_CTK: Sequence[Tensor | None], num_experts: int, device: torch.device) -> Tensor | None:
    """Return how many tokens each cell routes to each expert, int32 `[C, E]`; None if a replay does not tell of all.

    As in routers, a token counts once for an expert that its row names twice. Rows of -1, of which a router decides,
    make the counts wrong.

    Args:
        expert_CTK: the experts of each cell, any integer dtype, on any device; None for a cell without replay.
        num_experts: E.
        device: where the counts are to be.
    """
    told = [each for each in expert_CTK if each is not None]
    if len(told) < len(expert_CTK) or len({(each.shape, each.dtype, each.device) for each in told}) > 1:
        return None
    num_tokens = len(told[0])
    at_once = max(1, _MAP_BYTES // max(1, num_tokens * num_experts))
    counts = []
    for part_CTK in torch.split(torch.stack(told).to(device, non_blocking=True), at_once):
        map_CTE = torch.zeros(len(part_CTK), num_tokens, num_experts, dtype=torch.bool, device=device)
        map_CTE.scatter_(2, part_CTK.long().clamp_(min=0), True)
        counts.append(map_CTE.sum(dim=1, dtype=torch.int32))
    return counts[0] if len(counts) == 1 else torch.cat(counts)


class CellAhead(NamedTuple):
    """What is known of one cell before its router runs."""

    counts_E: Tensor | None
    """How many tokens of this rank go to each expert, int32; None if no replay tells."""
    gathered: tuple[GatheredAhead, int] | None
    """The counts of all ranks, under way, and the place of the cell in them; None if ranks gather cell by cell."""


class CountsAhead:
    """Compares, in one phase, what replays told with what routers chose.

    Args:
        is_agreed: whether all ranks gather the counts of a micro-batch ahead in this phase.
    """

    def __init__(self, *, is_agreed: bool = False) -> None:
        self.is_agreed = is_agreed
        self._is_untold = False
        self._compared: list[tuple[Tensor, Tensor]] = []

    def note(self, told_E: Tensor | None, chosen_E: Tensor) -> None:
        """Note what was told of a cell, and what its router chose. Nobody may write into the tensors any more."""
        if told_E is None:
            self._is_untold = True
        elif not self._is_untold:
            self._compared.append((told_E, chosen_E))

    def is_exact(self) -> bool | None:
        """Return whether replays told of every cell just what routers chose; None without cells.

        The host waits for the device.
        """
        if self._is_untold or not self._compared:
            return False if self._is_untold else None
        told, chosen = (torch.stack(each) for each in zip(*self._compared, strict=True))
        return torch.equal(told, chosen)
