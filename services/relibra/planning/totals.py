"""A plan summed over its rows: small enough to keep of many steps.

L layers, E experts, R EP ranks, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """Where experts live, and token copies of experts and ranks over all rows. Integers of any width."""

    home_rank_LE: NDArray[np.integer]
    load_LE: NDArray[np.integer]
    num_replicas_LE: NDArray[np.integer]
    before_LR: NDArray[np.integer]
    """Under the identity placement without replicas."""
    after_LR: NDArray[np.integer]

    @classmethod
    def of(cls, plan: Plan) -> "PlanTotals":
        """Sum a plan."""
        num_layers, num_experts = plan.home_rank_LE.shape
        num_ranks = plan.cluster.num_ranks
        _, layer_Q, expert_Q, rank_Q = plan.quota_index_Q4.T.astype(np.int64)
        expert_of_Q, rank_of_Q = layer_Q * num_experts + expert_Q, layer_Q * num_ranks + rank_Q
        shape_LE, shape_LR = (num_layers, num_experts), (num_layers, num_ranks)
        load_LE = _sum(expert_of_Q, plan.quota_tokens_Q, shape_LE)
        return cls(
            home_rank_LE=plan.home_rank_LE,
            load_LE=load_LE,
            num_replicas_LE=_sum(expert_of_Q, plan.is_replica_Q, shape_LE),
            before_LR=load_LE.reshape(num_layers, num_ranks, -1).sum(axis=-1),
            after_LR=_sum(rank_of_Q, plan.quota_tokens_Q, shape_LR),
        )

    def most_replicated(self, limit: int) -> list[tuple[int, int]]:
        """Return (layer, expert) with the most replicas, most first."""
        order = np.argsort(-self.num_replicas_LE.ravel().astype(np.int64), kind="stable")[:limit]
        num_experts = self.num_replicas_LE.shape[1]
        return [divmod(int(each), num_experts) for each in order if self.num_replicas_LE.flat[each]]


def _sum(
    index_Q: NDArray[np.int64], weight_Q: NDArray[np.int64] | NDArray[np.bool_], shape: tuple[int, int]
) -> NDArray[np.int64]:
    # Sums in float64 are exact: they stay far below 2**53.
    return np.bincount(index_Q, weights=weight_Q, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)
