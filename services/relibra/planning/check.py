"""Every invariant of a plan, one sentence each (S2).

There is one implementation: the planner checks a plan before it publishes it, the agent before it applies it, and tests
use the check as an oracle.

M rows, L layers, E experts, R EP ranks, Y replicas, y some of them.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidPlan
from relibra.planning.job import Cluster, Model
from relibra.planning.plan import Plan
from relibra.planning.step_plan import Replicas, StepPlan

_UNSORTED = "replicas are not sorted and unique by (row, layer, expert, rank)"
_AT_ONCE = 1 << 13
"""How many replicas are checked together: few enough that their arrays stay in the processor's cache."""


def check_plan(plan: Plan, load_MLE: NDArray[np.integer] | None = None) -> None:
    """Raise `InvalidPlan` unless a whole plan is valid; with `load_MLE`, also unless it was made for that load.

    In a valid plan every rank is home to E/R experts of each layer, replicas stay on their home's node and within the
    redundant slots, a rank has at most one copy of an expert, and replicas take no more tokens than their expert has.

    Raises:
        InvalidPlan: the text lists the broken invariants. An invariant that depends on a broken one is not checked.
    """
    faults = _placement_faults(plan.home_rank_LE, plan.model, plan.cluster)
    num_rows, num_layers = plan.num_rows, plan.model.num_layers
    faults = faults or _index_faults(plan.replica_index_Y4, num_rows, num_layers)
    if not faults:
        replicas = Replicas.of(plan.replica_index_Y4, num_rows, num_layers)
        faults = _replica_faults(replicas, plan.home_rank_LE, num_rows, plan.model, plan.cluster)
    faults = faults or _token_faults(plan)
    if load_MLE is not None and not faults:
        faults = _load_faults(plan, load_MLE)
    _raise(faults)


def check_step_plan(plan: StepPlan, model: Model, cluster: Cluster) -> None:
    """Raise `InvalidPlan` unless the part of a plan that ranks execute is valid.

    Raises:
        InvalidPlan: the text lists the broken invariants. An invariant that depends on a broken one is not checked.
    """
    faults = _placement_faults(plan.home_rank_LE, model, cluster)
    num_rows = plan.num_micro_batches * cluster.num_ep_groups
    _raise(faults or _replica_faults(plan.replicas, plan.home_rank_LE, num_rows, model, cluster))


def check_placement(home_rank_LE: NDArray[np.integer], model: Model, cluster: Cluster) -> None:
    """Raise `InvalidPlan` unless every rank is home to exactly E/R experts of every layer.

    Raises:
        InvalidPlan: the text lists the broken invariants.
    """
    _raise(_placement_faults(home_rank_LE, model, cluster))


def _raise(faults: list[str]) -> None:
    if faults:
        raise InvalidPlan("the plan is not valid: " + "; ".join(faults))


def _placement_faults(home_rank_LE: NDArray[np.integer], model: Model, cluster: Cluster) -> list[str]:
    shape = (model.num_layers, model.num_experts)
    if home_rank_LE.shape != shape:
        return [f"home_rank has shape {home_rank_LE.shape}, expected {shape}"]
    if home_rank_LE.min() < 0 or home_rank_LE.max() >= cluster.num_ranks:
        return [f"home_rank has values outside 0 to {cluster.num_ranks - 1}"]
    share = cluster.experts_per_rank(model)
    for layer, home_E in enumerate(home_rank_LE):
        homes_R = np.bincount(home_E, minlength=cluster.num_ranks)
        if (homes_R != share).any():
            rank = int(np.flatnonzero(homes_R != share)[0])
            return [f"layer {layer}: rank {rank} is home to {homes_R[rank]} experts, expected {share}"]
    return []


def _index_faults(index_Y4: NDArray[np.integer], num_rows: int, num_layers: int) -> list[str]:
    if index_Y4.ndim != 2 or index_Y4.shape[1] != 4:
        return [f"the replicas have shape {index_Y4.shape}, expected [Y, 4]"]
    row_Y, layer_Y = np.ascontiguousarray(index_Y4[:, :2].T)  # of a large plan, they are read many times faster
    if (fault := _range_fault(row_Y, "row", num_rows)) or (fault := _range_fault(layer_Y, "layer", num_layers)):
        return [fault]
    cell_Y = row_Y.astype(np.int64) * num_layers + layer_Y
    return [_UNSORTED] if (cell_Y[1:] < cell_Y[:-1]).any() else []


def _range_fault(value_Y: NDArray[np.integer], name: str, bound: int) -> str | None:
    if not len(value_Y) or (value_Y.min() >= 0 and value_Y.max() < bound):
        return None
    return f"a replica names a {name} outside 0 to {bound - 1}"


def _replica_faults(
    replicas: Replicas, home_rank_LE: NDArray[np.integer], num_rows: int, model: Model, cluster: Cluster
) -> list[str]:
    count_ML, expert_Y, rank_Y = replicas.count_ML, replicas.expert_Y, replicas.rank_Y
    num_experts, num_ranks = model.num_experts, cluster.num_ranks
    if count_ML.shape != (num_rows, model.num_layers):
        return [f"the cells of replicas have shape {count_ML.shape}, expected {(num_rows, model.num_layers)}"]
    if (fault := _range_fault(expert_Y, "expert", num_experts)) or (fault := _range_fault(rank_Y, "rank", num_ranks)):
        return [fault]
    is_at_home = is_far = False
    end, used, home_X = 0, 0, home_rank_LE.ravel()
    rows_at_once = 1 + num_rows * _AT_ONCE // (len(expert_Y) + 1)
    for row in range(0, num_rows, rows_at_once):
        count_C = count_ML[row : row + rows_at_once].ravel()
        begin, end = end, end + int(count_C.sum(dtype=np.int64))
        rank_y = rank_Y[begin:end].astype(np.int32)
        cell_y = np.repeat(np.arange(len(count_C)), count_C)
        place_y = cell_y * num_experts + expert_Y[begin:end]
        key_y = place_y * num_ranks + rank_y
        if (key_y[1:] <= key_y[:-1]).any():
            return [_UNSORTED]
        home_y = home_X[place_y % home_X.size]
        is_at_home |= bool((home_y == rank_y).any())
        is_far |= bool((home_y // cluster.gpus_per_node != rank_y // cluster.gpus_per_node).any())
        used = max(used, int(np.bincount(cell_y * num_ranks + rank_y).max(initial=0)))
    faults = ["a replica is on its own home rank"] if is_at_home else []
    if is_far:
        faults.append("a replica is not on the node of its home")
    if used > cluster.redundant_slots:
        faults.append(f"a rank holds {used} replicas in {cluster.redundant_slots} redundant slots")
    return faults


def _token_faults(plan: Plan) -> list[str]:
    shape_ML = (plan.num_rows, plan.model.num_layers)
    shape_MLE = (*shape_ML, plan.model.num_experts)
    tokens_Y = plan.replica_tokens_Y
    if plan.load_MLE.shape != shape_MLE:
        return [f"the load has shape {plan.load_MLE.shape}, expected {shape_MLE}"]
    if tokens_Y.shape != (len(plan.replica_index_Y4),):
        return [f"replica tokens have shape {tokens_Y.shape}, expected ({len(plan.replica_index_Y4)},)"]
    if plan.lower_bound_ML.shape != shape_ML:
        return [f"lower_bound has shape {plan.lower_bound_ML.shape}, expected {shape_ML}"]
    if plan.load_MLE.min(initial=0) < 0 or tokens_Y.min(initial=0) < 0:
        return ["a number of tokens is negative"]
    rest_MLE = plan.load_MLE.copy()
    np.subtract.at(rest_MLE, tuple(plan.replica_index_Y4[:, :3].T), tokens_Y)
    if rest_MLE.min(initial=0) < 0:
        return ["the replicas of an expert take more tokens than it has"]
    if (plan.rank_loads_MLR.max(axis=-1) + 1e-6 < plan.lower_bound_ML).any():
        return ["the slowest rank of a cell is below the cell's lower bound"]
    return []


def _load_faults(plan: Plan, load_MLE: NDArray[np.integer]) -> list[str]:
    if load_MLE.shape != plan.load_MLE.shape:
        return [f"the load has shape {load_MLE.shape}, expected {plan.load_MLE.shape}"]
    num_other = int((plan.load_MLE != load_MLE).sum())
    return [f"the plan was made for another load of {num_other} (row, layer, expert)"] if num_other else []
