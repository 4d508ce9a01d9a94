"""What one rank did with a plan: the realised counterpart of a forecast.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """One rank's report of one phase of one step."""

    step: int
    phase: Phase
    ep_group: int
    ep_rank: int
    applied: PlanId | None
    """None where the rank fell back to the previous placement without replicas."""
    reason: str
    realised_load_ML: NDArray[np.int64]
    """Token copies this rank computed."""
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    reorder_s: float = 0.0
    """What the reorder took, from the first expert that left until all ranks had written theirs."""
    replica_wait_s: float = 0.0
    """What the rank's host waited for replicas and their gradients to travel: what computation did not hide."""
