"""A plan summed up: what it promises, in numbers and in one sentence.

M rows, L layers, R EP ranks.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, Model
from relibra.planning.load import imbalance
from relibra.planning.plan import Level, Prediction

_PLANNED_FROM = {
    Level.HISTORY: "planned from earlier steps, for a mean micro-batch of which ",
    Level.STEP: "planned from the sequences of the step, for a mean micro-batch of which ",
    Level.MICRO_BATCHES: "",
}


def predict(
    planned_MLR: NDArray[np.int64],
    identity_MLR: NDArray[np.int64],
    bound_ML: NDArray[np.float64],
    floor_L: NDArray[np.int64],
    model: Model,
    cluster: Cluster,
    *,
    num_moved: int,
    num_replicas: int,
    level: Level = Level.MICRO_BATCHES,
) -> Prediction:
    """Return the prediction of a plan.

    Args:
        planned_MLR: the token copies that ranks compute under it.
        identity_MLR: those that they would compute under the identity plan.
        bound_ML: tokens of the slowest rank that no plan with this placement goes below.
        floor_L: tokens of the slowest rank, summed over rows, that no plan of any placement goes below.
        model: the MoE layers.
        cluster: the EP groups.
        num_moved: experts whose home differs from the placement before the step.
        num_replicas: replicas of all cells.
        level: what was known of the step.

    Returns:
        The prediction without times and memory; its bytes are summed over all EP groups, and None where the model gives
        no sizes.
    """
    total = int(planned_MLR.sum())
    return Prediction(
        imbalance_before=imbalance(identity_MLR),
        imbalance_after=imbalance(planned_MLR),
        imbalance_bound=float(bound_ML.sum()) * cluster.num_ranks / total if total else 1.0,
        num_moved_experts=num_moved,
        num_replicas=num_replicas,
        reorder_size_bytes=num_moved * cluster.num_ep_groups * model.expert_state_size_bytes,
        replica_size_bytes=num_replicas * model.expert_weight_size_bytes,
        imbalance_floor=int(floor_L.sum()) * cluster.num_ranks / total if total else 1.0,
        level=level,
    )


def sentence(prediction: Prediction, parts: list[str]) -> str:
    """Say what a plan achieves, and what each part of planning did for it."""
    before, after, bound = prediction.imbalance_before, prediction.imbalance_after, prediction.imbalance_bound
    change = f"falls from {before:.3f} to" if after < before else "stays at"
    gap = "the lower bound" if after <= bound else f"{after / bound - 1:.2%} above the lower bound"
    floor = f"no placement gets below {prediction.imbalance_floor:.3f}"
    if prediction.time_us and prediction.time_bound_us and prediction.time_floor_us:
        of_bound, of_floor = (
            prediction.time_us / lower_us for lower_us in (prediction.time_bound_us, prediction.time_floor_us)
        )
        time = f"experts and dispatch take {of_bound - 1:.1%} longer than the lower bound of this placement"
        parts = [f"{time}, and {of_floor - 1:.1%} longer than that of any placement", *parts]
    if prediction.imbalance_known is not None:
        parts = [*parts, f"micro-batches that are known in advance would have {prediction.imbalance_known:.3f}"]
    if prediction.excess:
        parts = [prediction.excess, *parts]
    said = f"imbalance {change} {after:.3f}, {gap} of this placement, and {floor}: {'; '.join(parts)}"
    return _PLANNED_FROM[prediction.level] + said
