"""Whether a rank's tokens were routed as its plan expected, and the likely cause if they were not.

A plan with basis replay knows the routing of all tokens but a few: the last token of a sequence and padding get their
routes in the trainer. A cell is therefore routed otherwise only if more than `TOLERANCE` of its token copies differ.

M micro-batches, L layers, B buckets of experts (`planning.source_load`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.02
"""The share of a cell's token copies that may differ."""
_FEW = 0.1
"""Fillers change at most this share of a micro-batch."""


class RoutingCause(StrEnum):
    """Why tokens were routed otherwise than planned, as far as counts tell. Programs count by these values."""

    NO_REPLAY = "no replay"
    """As many tokens as planned went to other experts: the routers decided."""
    FILLERS = "fillers"
    """Few tokens of a micro-batch differ, or tokens came on top of the planned ones, as those without a recorded route
    do: last tokens, padding, and sequences that the trainer does not replay."""
    MICRO_BATCHES = "micro-batches"
    """The micro-batch had the tokens of another one."""
    UNSPECIFIED = "unspecified"
    """The agent runs another version of relibra, and this one does not know the cause."""

    @property
    def likely(self) -> str:
        """The likely cause as a clause, for people."""
        return _LIKELY[self]


_LIKELY = {
    RoutingCause.NO_REPLAY: "routing is not replayed, so the routers decided",
    RoutingCause.FILLERS: (
        "tokens without a recorded route (last tokens, padding, sequences that are masked out) get other routes than "
        "the planner was told, or a router decided almost as the rollout did"
    ),
    RoutingCause.MICRO_BATCHES: "micro-batches have other sequences, or run in another order, than in the schedule",
    RoutingCause.UNSPECIFIED: "an agent of another version of relibra does not name one that this version knows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingCheck:
    """The result of a comparison."""

    num_cells: int = 0
    """Cells that were compared."""
    otherwise: dict[RoutingCause, int] = field(default_factory=dict)
    """Cells that were routed otherwise, by likely cause; causes without cells are left out."""

    @property
    def num_otherwise(self) -> int:
        """Cells that were routed otherwise."""
        return sum(self.otherwise.values())

    @classmethod
    def total(cls, checks: Iterable["RoutingCheck"]) -> "RoutingCheck":
        """Return the sum of checks of different layers or ranks."""
        num_cells, otherwise = 0, Counter[RoutingCause]()
        for check in checks:
            num_cells += check.num_cells
            otherwise.update(check.otherwise)
        return cls(
            num_cells=num_cells, otherwise={cause: otherwise[cause] for cause in RoutingCause if otherwise[cause]}
        )


def check_routed(
    planned_MLB: NDArray[np.integer], realised_MLB: NDArray[np.integer], ran_ML: NDArray[np.bool_]
) -> RoutingCheck:
    """Compare the tokens of one rank with those its plan expects.

    Args:
        planned_MLB: token copies that the plan expects.
        realised_MLB: token copies that the rank's routers chose; may have more micro-batches, for which none were
            planned.
        ran_ML: the cells that ran on this rank; others are not compared.
    """
    missing = len(realised_MLB) - len(planned_MLB)
    padded_MLB = np.pad(planned_MLB.astype(np.int64), ((0, max(0, missing)), (0, 0), (0, 0)))
    padded_MLB = padded_MLB[: len(realised_MLB)]
    differs_ML = ran_ML & (_distance(padded_MLB, realised_MLB) > TOLERANCE)
    all_ran = len(realised_MLB) >= len(planned_MLB) and bool(np.all(ran_ML[: len(planned_MLB)].any(axis=1)))
    otherwise: Counter[RoutingCause] = Counter()
    for micro_batch in np.flatnonzero(differs_ML.any(axis=1)):
        ran_L = ran_ML[micro_batch]
        cause = _cause(int(micro_batch), planned_MLB[:, ran_L], padded_MLB[:, ran_L], realised_MLB[:, ran_L], all_ran)
        otherwise[cause] += int(differs_ML[micro_batch].sum())
    return RoutingCheck(
        num_cells=int(ran_ML.sum()), otherwise={cause: otherwise[cause] for cause in RoutingCause if otherwise[cause]}
    )


def _distance(planned_xB: NDArray[np.integer], realised_xB: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the share of token copies that must change to make one of the other, `[...]`, at least."""
    change_xB = realised_xB.astype(np.int64) - planned_xB
    changed_x = np.maximum(np.maximum(change_xB, 0).sum(axis=-1), np.maximum(-change_xB, 0).sum(axis=-1))
    total_x = np.maximum(planned_xB.sum(axis=-1), realised_xB.sum(axis=-1))
    share_x: NDArray[np.float64] = changed_x / np.maximum(total_x, 1)
    return share_x


def _cause(
    micro_batch: int,
    planned_MLB: NDArray[np.integer],
    padded_MLB: NDArray[np.integer],
    realised_MLB: NDArray[np.integer],
    all_ran: bool,
) -> RoutingCause:
    """Return the likely cause in one micro-batch, from its layers that ran; `all_ran`: planned micro-batches."""
    own_LB, realised_LB = padded_MLB[micro_batch], realised_MLB[micro_batch]
    to_own = float(_distance(own_LB, realised_LB).mean())
    to_others_M = _distance(planned_MLB, realised_LB[None]).mean(axis=1)
    closest = int(to_others_M.argmin()) if len(to_others_M) else micro_batch
    if closest != micro_batch and to_others_M[closest] <= min(TOLERANCE, to_own / 2):
        return RoutingCause.MICRO_BATCHES
    if to_own <= _FEW:
        return RoutingCause.FILLERS
    # A router gives each token as many experts as replay does, so another number of tokens means other tokens.
    planned, realised = int(own_LB.sum()), int(realised_LB.sum())
    # All planned tokens came, and others on top. If two micro-batches were merged, one of them did not run.
    absent = int(np.maximum(own_LB - realised_LB, 0).sum())
    if all_ran and micro_batch < len(planned_MLB) and absent <= TOLERANCE * planned:
        return RoutingCause.FILLERS
    if abs(planned - realised) > _FEW * max(planned, realised):
        return RoutingCause.MICRO_BATCHES
    return RoutingCause.NO_REPLAY
