"""What one EP rank needs to execute a step: the placement, every replica, and its own share of each replica's quota.

M rows, L layers, E experts, Q replicas, B buckets of experts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.plan import Basis, Plan


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
class RankPlan:
    """The plan of a step as one rank sees it. All but `replica_share_Q` and `source_load_MLB` is equal on all ranks."""

    id: PlanId
    step: int
    digest: bytes
    home_rank_LE: NDArray[np.int32]
    replica_index_Q4: NDArray[np.int32]
    """(row, layer, expert, rank) of every replica of the step, sorted."""
    replica_share_Q: NDArray[np.int32]
    """Tokens that this rank sends to each replica. In a forecast, the fraction of its tokens of the expert instead, in
    units of 2**-15."""
    num_micro_batches: int
    reason: str
    basis: Basis = Basis.REPLAY
    source_load_MLB: NDArray[np.int64] | None = None
    """The token copies that the plan expects from this source rank, by bucket of experts (`planning.source_load`). None
    in a forecast, and if the planner does not say."""

    @classmethod
    def of(
        cls, plan: Plan, *, rank: int, id: PlanId, step: int, source_load_RMLB: NDArray[np.int64] | None = None
    ) -> "RankPlan":
        """Cut the part of `plan` that `rank` executes, and its part of the loads that all ranks expect, if given."""
        replica_Q = plan.is_replica_Q
        return cls(
            id=id,
            step=step,
            digest=plan.digest,
            home_rank_LE=plan.home_rank_LE,
            replica_index_Q4=plan.quota_index_Q4[replica_Q],
            replica_share_Q=plan.shares.of_rank(rank),
            num_micro_batches=plan.schedule.num_micro_batches,
            reason=plan.reason,
            basis=plan.prediction.basis,
            source_load_MLB=None if source_load_RMLB is None else source_load_RMLB[rank],
        )
