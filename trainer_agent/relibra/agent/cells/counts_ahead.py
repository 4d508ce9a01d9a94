"""Counts of tokens that a replay tells before the forward of a micro-batch, compared with those that routers choose.

With replay, a rank can count the tokens of all cells of a micro-batch before the first cell runs, so that one
all-gather brings all these counts. Routers may choose other experts all the same: a replay leaves some rows to them, as
verl's and NeMo-RL's do with the last row of a sequence, routers may drop tokens, and a framework may change the choice.
So each cell is compared. Where tokens are split by told counts, a small difference costs little balance and changes no
result. Where dispatchers rely on them, they must be exact: else the job stops before the optimizer steps.

C cells of a micro-batch, T tokens of this rank, K top-k, E experts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.agent.cells.shapes_ahead import ShapesAhead
from relibra.agent.cells.token_split import GatheredAhead
from relibra.errors import Unsupported

_MAP_BYTES = 1 << 26
"""The most memory of routing maps that are counted together."""
_MOST_WRONG = 0.01
"""The part of a rank's tokens in a cell by which told counts may differ. Only these are split less evenly."""


def count_ahead(
    expert_CTK: Sequence[Tensor | None], num_experts: int, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Return how many tokens each cell routes to each expert, and how many a replay leaves to its router.

    Both are int32, `[C, E]` and `[C]`; None if a replay does not tell of all cells. As in routers, a token counts once
    for an expert that its row names twice. Rows of -1 are left to the router.

    Args:
        expert_CTK: the experts of each cell, any integer dtype, on any device; None for a cell without replay.
        num_experts: E.
        device: where the counts are to be.
    """
    told = [experts_TK for experts_TK in expert_CTK if experts_TK is not None]
    if len(told) < len(expert_CTK) or len({(cell.shape, cell.dtype, cell.device) for cell in told}) > 1:
        return None
    num_tokens = len(told[0])
    at_once = max(1, _MAP_BYTES // max(1, num_tokens * num_experts))
    counts = []
    for part_CTK in torch.split(torch.stack(told).to(device, non_blocking=True), at_once):
        ids_CTK = part_CTK.long()
        map_CTE = torch.zeros(len(part_CTK), num_tokens, num_experts + 1, dtype=torch.bool, device=device)
        map_CTE.scatter_(2, ids_CTK.where(ids_CTK >= 0, num_experts), True)
        counts.append(map_CTE.sum(dim=1, dtype=torch.int32))
    counts_CE = counts[0] if len(counts) == 1 else torch.cat(counts)
    return counts_CE[:, :num_experts].contiguous(), counts_CE[:, num_experts]


class CellAhead(NamedTuple):
    """The counts of one cell that are known before its router runs."""

    counts_E: Tensor | None
    """How many tokens of this rank go to each expert, int32; None if no replay tells."""
    num_left: Tensor | None
    """How many tokens of this rank a replay leaves to the router, int32; None if no replay tells."""
    gathered: tuple[GatheredAhead, int] | None
    """The pending gather of all ranks' counts, and the place of the cell in it; None if ranks gather cell by cell, or
    do not split the tokens of the cell."""
    share_P: Tensor | None = None
    """How this rank's tokens are split over the slots, if that is known."""
    shapes: tuple[ShapesAhead, int] | None = None
    """The shapes that ranks still gather, and the place of the cell in them; None if dispatchers count rows."""


def cells_ahead(
    expert_CTK: Sequence[Tensor | None],
    num_split: int,
    num_experts: int,
    device: torch.device,
    gather: Callable[[Tensor], GatheredAhead] | None,
) -> list[CellAhead]:
    """Return what is known of the cells of a forward before it.

    Args:
        expert_CTK: the same as of `count_ahead`.
        num_split: how many of the cells, the first ones, have tokens to split.
        num_experts: E.
        device: where the counts are to be.
        gather: begins to gather the counts `[num_split, E]` of all ranks, zeros from a rank whose replay does not tell;
            None if the ranks gather cell by cell.
    """
    split_CTK, others_CTK = expert_CTK[:num_split], expert_CTK[num_split:]
    counted = count_ahead(split_CTK, num_experts, device) if split_CTK else None
    gathered = None
    if gather is not None and num_split:
        none_CE = torch.zeros(num_split, num_experts, dtype=torch.int32, device=device)
        gathered = gather(none_CE if counted is None else counted[0])
    split = [
        CellAhead(*_told(counted, place), gathered=None if gathered is None else (gathered, place))
        for place in range(num_split)
    ]
    # One by one, so that a layer without told routing does not spoil the counts of the others.
    others = (count_ahead([expert_TK], num_experts, device) for expert_TK in others_CTK)
    return [*split, *(CellAhead(*_told(each, 0), gathered=None) for each in others)]


def _told(counted: tuple[Tensor, Tensor] | None, place: int) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if counted is None else (counted[0][place], counted[1][place])


class CountsAhead:
    """Compares, in one phase, what replays told with what routers chose.

    Args:
        is_agreed: whether all ranks gather the counts of a micro-batch ahead in this phase.
        was_exact: whether replays told this rank all that its routers chose, when this phase ran last.
    """

    def __init__(self, *, is_agreed: bool = False, was_exact: bool = False) -> None:
        self.is_agreed, self.was_exact = is_agreed, was_exact
        self._is_untold = False
        self._compared: list[tuple[Tensor, Tensor]] = []
        self._relied: list[tuple[int, Tensor, Tensor]] = []

    def note(self, told_E: Tensor | None, chosen_E: Tensor) -> None:
        """Note what was told of a cell, and what its router chose. Nobody may write into the tensors any more."""
        if told_E is None:
            self._is_untold = True
        elif not self._is_untold:
            self._compared.append((told_E, chosen_E))

    def rely(self, layer: int, told_E: Tensor, chosen_E: Tensor) -> None:
        """Note that a cell dispatches its tokens by the told counts, which must equal what its router chose."""
        self._relied.append((layer, told_E, chosen_E))

    def is_close(self, most_wrong: float | None = None) -> bool | None:
        """Return whether replays told of every cell almost all that routers chose; None without cells.

        The host waits for the device.

        Args:
            most_wrong: the largest part of a rank's tokens in a cell that replays may miss.
        """
        if self._is_untold or not self._compared:
            return False if self._is_untold else None
        told_CE, chosen_CE = (torch.stack(counts) for counts in zip(*self._compared, strict=True))
        wrong_C = (told_CE - chosen_CE).abs().sum(dim=1)
        most_wrong = _MOST_WRONG if most_wrong is None else most_wrong
        return bool((wrong_C <= most_wrong * chosen_CE.sum(dim=1)).all())

    def take_refusal(self) -> Unsupported | None:
        """Return the error of tokens that were dispatched by wrong counts since the last call; the host waits."""
        relied, self._relied = self._relied, []
        if not relied:
            return None
        layers, told, chosen = zip(*relied, strict=True)
        is_wrong_C = (torch.stack(told) != torch.stack(chosen)).any(dim=1).tolist()
        wrong = sorted({layer for layer, is_wrong in zip(layers, is_wrong_C, strict=True) if is_wrong})
        if not wrong:
            return None
        return Unsupported(
            f"MoE layers {wrong} chose other experts than the replay had told before the forward, but their tokens "
            "were dispatched as told, so their results are wrong: something changes the choice of routers after "
            "the replay; switch off either that or the replay"
        )
