"""The report of one rank on what it did with a plan: the realised counterpart of a plan's prediction.

M micro-batches of the rank's EP group, L layers.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from relibra.planning.rank_plan import PlanId


class Phase(StrEnum):
    """The two passes of an RL step over the same tokens."""

    RECOMPUTE = "recompute"
    """Old log-probabilities: forward only."""
    UPDATE = "update"
    """Forward, backward, optimizer step."""


class Cause(StrEnum):
    """Why a rank kept the previous placement without replicas. Whatever is counted or decided uses these values."""

    LATE = "late"
    """A rank had no plan in time."""
    STALE = "stale"
    """A rank was offered a plan of an older epoch."""
    INVALID = "invalid"
    """A rank was offered a plan that breaks an invariant."""
    DISAGREED = "disagreed"
    """Ranks held different plans, or were at different steps."""
    UNDONE = "undone"
    """The reorder failed on some rank, and was undone on all."""
    UNSPECIFIED = "unspecified"
    """The agent runs another version of relibra, and this one does not know the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """One rank's report of one phase of one step."""

    step: int
    phase: Phase
    ep_group: int
    ep_rank: int
    applied: PlanId | None
    """None where the rank kept the previous placement without replicas."""
    reason: str
    """Why this plan or why none, for people. Nothing reads it to decide."""
    realised_load_ML: NDArray[np.int64]
    """Token copies this rank computed."""
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    reorder_s: float = 0.0
    """How long the reorder took, from the first expert that left until all ranks had written theirs."""
    replica_wait_s: float = 0.0
    """How long the rank's host waited for replicas and their gradients: the part that computation did not hide."""
    causes: tuple[Cause, ...] = ()
    """All causes of the fallback, each once. Empty where a plan was applied, and from agents that send no causes."""
