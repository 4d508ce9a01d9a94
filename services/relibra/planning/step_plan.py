"""What the ranks need to execute a step: the placement and every replica.

L layers, E experts, Y replicas.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.planning.plan import Level, Plan


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlanId:
    """Identity of a published plan.

    Within an epoch versions only rise (S3), and one id always denotes the same content.
    """

    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.epoch:016x}.{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The plan of a step as ranks execute it, equal on all of them."""

    id: PlanId
    step: int
    digest: bytes
    home_rank_LE: NDArray[np.int32]
    replica_index_Y4: NDArray[np.int32]
    """(row, layer, expert, rank) of every replica of the step, sorted."""
    num_micro_batches: int
    reason: str
    level: Level = Level.MICRO_BATCHES
    expected_gain: float = 0.0
    """`Prediction.expected_gain`."""

    @classmethod
    def of(cls, plan: Plan, *, id: PlanId, step: int) -> "StepPlan":
        """Return the part of `plan` that ranks execute."""
        return cls(
            id=id,
            step=step,
            digest=plan.digest,
            home_rank_LE=plan.home_rank_LE,
            replica_index_Y4=plan.replica_index_Y4,
            num_micro_batches=plan.schedule.num_micro_batches,
            reason=plan.reason,
            level=plan.prediction.level,
            expected_gain=plan.prediction.expected_gain,
        )


def replica_index(count_ML: NDArray[Any], expert_Y: NDArray[Any], rank_Y: NDArray[Any]) -> NDArray[np.int32]:
    """Return (row, layer, expert, rank) of replicas, `[Y, 4]`, from their number in each cell and what each one is."""
    row_Y, layer_Y = np.divmod(np.repeat(np.arange(count_ML.size), count_ML.ravel()), count_ML.shape[1])
    return np.stack([row_Y, layer_Y, expert_Y, rank_Y], axis=1).astype(np.int32)
