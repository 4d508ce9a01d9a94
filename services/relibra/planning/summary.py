"""What a plan promises in numbers, and in one sentence.

M rows, L layers, E experts, R EP ranks, Q quotas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.bounds.step import step_bound_L
from relibra.planning.job import Cluster, Model
from relibra.planning.load import home_loads, imbalance, rank_loads
from relibra.planning.plan import Basis, Prediction
from relibra.planning.replicas.replicate import Quotas


def predict(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    previous_LE: NDArray[np.int32],
    quotas: Quotas,
    bound_ML: NDArray[np.float64],
    model: Model,
    cluster: Cluster,
    basis: Basis = Basis.REPLAY,
) -> Prediction:
    """Count what the plan does; bytes are over all EP groups and 0 where the model gives no sizes."""
    num_rows, num_layers, _ = load_MLE.shape
    loads_MLR = rank_loads(quotas.index_Q4, quotas.tokens_Q, num_rows, num_layers, cluster.num_ranks)
    identity_MLR = home_loads(load_MLE, cluster.identity_placement(model), cluster.num_ranks)
    total = int(load_MLE.sum())
    _, layer_Q, expert_Q, rank_Q = quotas.index_Q4.T
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
        imbalance_floor=int(step_bound_L(load_MLE, cluster).sum()) * cluster.num_ranks / total if total else 1.0,
        basis=basis,
    )


def sentence(numbers: Prediction, parts: list[str]) -> str:
    """Say what the plan achieves, and what each step of planning did for it."""
    before, after, bound = numbers.imbalance_before, numbers.imbalance_after, numbers.imbalance_bound
    change = f"falls from {before:.3f} to" if after < before else "stays at"
    gap = "the bound" if after <= bound else f"{after / bound - 1:.2%} above the bound"
    floor = f"no placement is below {numbers.imbalance_floor:.3f}"
    said = f"imbalance {change} {after:.3f}, {gap}; {floor}: {'; '.join(parts)}"
    return said if numbers.basis is Basis.REPLAY else f"forecast from the {numbers.basis}: {said}"
