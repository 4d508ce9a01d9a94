"""What the ranks need to execute a step: the placement and every replica.

M rows, L layers, E experts, Y replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
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
class Replicas:
    """All replicas of a step, sorted by (row, layer, expert, rank): how many each cell has, and what each one is.

    The arrays may be of any integer dtype, so that a plan is executed as it travels.

    Raises:
        InvalidInput: there are not as many experts and ranks as the cells have replicas.
    """

    count_ML: NDArray[np.integer]
    expert_Y: NDArray[np.integer]
    rank_Y: NDArray[np.integer]

    def __post_init__(self) -> None:
        count_ML, num = self.count_ML, len(self.expert_Y)
        # Each count is checked before the sum, because the sum may wrap around.
        is_possible = count_ML.min(initial=0) >= 0 and count_ML.max(initial=0) <= num == len(self.rank_Y)
        if not is_possible or count_ML.sum(dtype=np.int64) != num:
            got = f"{count_ML.sum(dtype=np.int64)}, and {len(self.rank_Y)} ranks"
            raise InvalidInput.of("plan.replica_count", expected=f"a sum of {num}", got=got)

    @classmethod
    def of(cls, index_Y4: NDArray[np.integer], num_rows: int, num_layers: int) -> "Replicas":
        """Return the replicas of a sorted list of (row, layer, expert, rank)."""
        row_Y, layer_Y, expert_Y, rank_Y = np.ascontiguousarray(index_Y4.T)
        count_C = np.bincount(row_Y.astype(np.int64) * num_layers + layer_Y, minlength=num_rows * num_layers)
        return cls(count_ML=count_C.reshape(num_rows, num_layers), expert_Y=expert_Y, rank_Y=rank_Y)

    @property
    def index_Y4(self) -> NDArray[np.int32]:
        """(row, layer, expert, rank) of every replica."""
        count_ML = self.count_ML
        row_Y, layer_Y = np.divmod(np.repeat(np.arange(count_ML.size), count_ML.ravel()), count_ML.shape[1])
        return np.stack([row_Y, layer_Y, self.expert_Y, self.rank_Y], axis=1).astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The plan of a step as ranks execute it, equal on all of them."""

    id: PlanId
    step: int
    digest: bytes
    home_rank_LE: NDArray[np.int32]
    replicas: Replicas
    num_micro_batches: int
    reason: str
    level: Level = Level.MICRO_BATCHES
    expected_gain: float = 0.0
    """`Prediction.expected_gain`."""
    excess: str = ""
    """`Prediction.excess`."""

    @classmethod
    def of(cls, plan: Plan, *, id: PlanId, step: int) -> "StepPlan":
        """Return the part of `plan` that ranks execute."""
        return cls(
            id=id,
            step=step,
            digest=plan.digest,
            home_rank_LE=plan.home_rank_LE,
            replicas=Replicas.of(plan.replica_index_Y4, plan.num_rows, plan.model.num_layers),
            num_micro_batches=plan.schedule.num_micro_batches,
            reason=plan.reason,
            level=plan.prediction.level,
            expected_gain=plan.prediction.expected_gain,
            excess=plan.prediction.excess,
        )
