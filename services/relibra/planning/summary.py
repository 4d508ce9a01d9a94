"""A plan summed up: what it promises in numbers and in one sentence, and its totals over all rows.

M rows, L layers, E experts, R EP ranks, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, Model
from relibra.planning.load import home_loads, imbalance, rank_loads
from relibra.planning.plan import Basis, Plan, Prediction


def predict(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    previous_LE: NDArray[np.int32],
    quota_index_Q4: NDArray[np.int32],
    quota_tokens_Q: NDArray[np.int64],
    bound_ML: NDArray[np.float64],
    floor_L: NDArray[np.int64],
    model: Model,
    cluster: Cluster,
    basis: Basis = Basis.REPLAY,
) -> Prediction:
    """Return the prediction of a plan.

    Args:
        load_MLE: the loads that it was made for.
        home_LE: its placement.
        previous_LE: the placement experts are in before the step.
        quota_index_Q4: its quotas, as in `Plan`.
        quota_tokens_Q: their tokens.
        bound_ML: tokens of the slowest rank that no plan with this placement goes below.
        floor_L: tokens of the slowest rank, summed over rows, that no plan of any placement goes below.
        model: the MoE layers.
        cluster: the EP groups.
        basis: what the loads are based on.

    Returns:
        The prediction without times; its bytes are summed over all EP groups, and None where the model gives no sizes.
    """
    num_rows, num_layers, _ = load_MLE.shape
    loads_MLR = rank_loads(quota_index_Q4, quota_tokens_Q, num_rows, num_layers, cluster.num_ranks)
    identity_MLR = home_loads(load_MLE, cluster.identity_placement(model), cluster.num_ranks)
    total = int(load_MLE.sum())
    _, layer_Q, expert_Q, rank_Q = quota_index_Q4.T
    num_replicas = int((home_LE[layer_Q, expert_Q] != rank_Q).sum())
    num_moved = int((home_LE != previous_LE).sum())
    return Prediction(
        imbalance_before=imbalance(identity_MLR),
        imbalance_after=imbalance(loads_MLR),
        imbalance_bound=float(bound_ML.sum()) * cluster.num_ranks / total if total else 1.0,
        num_moved_experts=num_moved,
        num_replicas=num_replicas,
        reorder_size_bytes=num_moved * cluster.num_ep_groups * model.expert_state_size_bytes,
        replica_size_bytes=num_replicas * model.expert_weight_size_bytes,
        imbalance_floor=int(floor_L.sum()) * cluster.num_ranks / total if total else 1.0,
        basis=basis,
    )


def sentence(prediction: Prediction, parts: list[str]) -> str:
    """Say what a plan achieves, and what each part of planning did for it."""
    before, after, bound = prediction.imbalance_before, prediction.imbalance_after, prediction.imbalance_bound
    change = f"falls from {before:.3f} to" if after < before else "stays at"
    gap = "the lower bound" if after <= bound else f"{after / bound - 1:.2%} above the lower bound"
    floor = f"no placement gets below {prediction.imbalance_floor:.3f}"
    if prediction.time_us and prediction.time_bound_us and prediction.time_floor_us:
        of_bound, of_floor = (
            prediction.time_us / each for each in (prediction.time_bound_us, prediction.time_floor_us)
        )
        time = f"experts and dispatch take {of_bound - 1:.1%} longer than the lower bound of this placement"
        parts = [f"{time}, and {of_floor - 1:.1%} longer than that of any placement", *parts]
    said = f"imbalance {change} {after:.3f}, {gap} of this placement, and {floor}: {'; '.join(parts)}"
    return said if prediction.basis is Basis.REPLAY else f"forecast from the {prediction.basis}: {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """The placement of a plan, and its token copies summed over rows: small enough to keep for many steps.

    Arrays are integers of any width.
    """

    home_rank_LE: NDArray[np.integer]
    load_LE: NDArray[np.integer]
    """Token copies of every expert."""
    num_replicas_LE: NDArray[np.integer]
    before_LR: NDArray[np.integer]
    """Token copies of every rank under the identity placement without replicas."""
    after_LR: NDArray[np.integer]
    """Token copies of every rank under the plan."""

    @classmethod
    def of(cls, plan: Plan) -> "PlanTotals":
        """Sum a plan over its rows."""
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
        """Return the (layer, expert) pairs with the most replicas, at most `limit` of them, most replicas first."""
        order = np.argsort(-self.num_replicas_LE.ravel().astype(np.int64), kind="stable")[:limit]
        num_experts = self.num_replicas_LE.shape[1]
        return [divmod(int(each), num_experts) for each in order if self.num_replicas_LE.flat[each]]


def _sum(
    index_Q: NDArray[np.int64], weight_Q: NDArray[np.int64] | NDArray[np.bool_], shape: tuple[int, int]
) -> NDArray[np.int64]:
    # Sums in float64 are exact: they stay far below 2**53.
    return np.bincount(index_Q, weights=weight_Q, minlength=shape[0] * shape[1]).astype(np.int64).reshape(shape)
