"""Every invariant of a plan, one sentence each (S2).

There is one implementation: the planner checks a plan before it publishes it, the agent before it applies it, and tests
use the check as an oracle.

M rows, L layers, E experts, R EP ranks, Q quotas, Y replicas, B replicas of one block.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidPlan
from relibra.planning.job import Cluster, Model
from relibra.planning.plan import Basis, Plan
from relibra.planning.rank_plan import RankPlan
from relibra.planning.shares import WHOLE, begins, fractions


def check_plan(plan: Plan, load_MLE: NDArray[np.integer] | None = None) -> None:
    """Raise `InvalidPlan` unless a whole plan is valid; with `load_MLE`, also unless its quotas sum to that load.

    In a valid plan every rank is home to E/R experts of each layer, replicas stay on their home's node and within the
    redundant slots, a rank has at most one copy of an expert, and shares fit quotas.

    Raises:
        InvalidPlan: the text lists the broken invariants. An invariant that depends on a broken one is not checked.
    """
    faults = _placement_faults(plan.home_rank_LE, plan.model, plan.cluster)
    if not faults:
        faults = _quota_faults(plan)
        if not faults:
            replica_Q = plan.is_replica_Q
            faults = _replica_faults(plan.quota_index_Q4[replica_Q], plan.home_rank_LE, plan.cluster)
            if load_MLE is not None:
                faults += _load_faults(plan, load_MLE)
    _raise(faults)


def check_rank_plan(plan: RankPlan, model: Model, cluster: Cluster) -> None:
    """Raise `InvalidPlan` unless the part of a plan that one rank received is valid.

    Raises:
        InvalidPlan: the text lists the broken invariants. An invariant that depends on a broken one is not checked.
    """
    faults = _placement_faults(plan.home_rank_LE, model, cluster)
    if not faults:
        num_rows = plan.num_micro_batches * cluster.num_ep_groups
        faults = _index_faults(plan.replica_index_Q4, num_rows, model, cluster)
        if not faults:
            faults = _replica_faults(plan.replica_index_Q4, plan.home_rank_LE, cluster)
            if plan.replica_share_Q.shape != (len(plan.replica_index_Q4),):
                faults.append(
                    f"shares have shape {plan.replica_share_Q.shape}, expected ({len(plan.replica_index_Q4)},)"
                )
            elif (plan.replica_share_Q < 0).any():
                faults.append("a share of a replica is negative")
            elif plan.basis is not Basis.REPLAY:
                end_Q = begins(plan.replica_index_Q4, plan.replica_share_Q) + plan.replica_share_Q
                if (end_Q > WHOLE).any():
                    faults.append(f"the fractions of an expert sum to {end_Q.max()}, more than {WHOLE}")
            if plan.source_load_MLB is not None and len(plan.source_load_MLB) != num_rows:
                faults.append(f"source_load has {len(plan.source_load_MLB)} rows, expected {num_rows}")
            _, layer_Q, expert_Q, rank_Q = plan.replica_index_Q4.T
            if (plan.home_rank_LE[layer_Q, expert_Q] == rank_Q).any():
                faults.append("a replica is on its own home rank")
    _raise(faults)


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


def _index_faults(index_Q4: NDArray[np.integer], num_rows: int, model: Model, cluster: Cluster) -> list[str]:
    if index_Q4.ndim != 2 or index_Q4.shape[1] != 4:
        return [f"the quota index has shape {index_Q4.shape}, expected [Q, 4]"]
    bounds = (num_rows, model.num_layers, model.num_experts, cluster.num_ranks)
    for column, (name, bound) in enumerate(zip(("row", "layer", "expert", "rank"), bounds, strict=True)):
        value_Q = index_Q4[:, column]
        if len(value_Q) and (value_Q.min() < 0 or value_Q.max() >= bound):
            return [f"a quota names a {name} outside 0 to {bound - 1}"]
    key_Q = np.ravel_multi_index(tuple(index_Q4.T.astype(np.int64)), bounds)
    if (np.diff(key_Q) <= 0).any():
        return ["quotas are not sorted and unique by (row, layer, expert, rank)"]
    return []


def _quota_faults(plan: Plan) -> list[str]:
    faults = _index_faults(plan.quota_index_Q4, plan.num_rows, plan.model, plan.cluster)
    num_quotas = len(plan.quota_index_Q4)
    if plan.quota_tokens_Q.shape != (num_quotas,):
        faults.append(f"token counts have shape {plan.quota_tokens_Q.shape}, expected ({num_quotas},)")
    elif (plan.quota_tokens_Q < 0).any():
        faults.append("a quota is negative")
    elif not faults:
        faults += _share_faults(plan)
    shape = (plan.num_rows, plan.model.num_layers)
    if plan.lower_bound_ML.shape != shape:
        faults.append(f"lower_bound has shape {plan.lower_bound_ML.shape}, expected {shape}")
    elif not faults and (plan.rank_loads_MLR.max(axis=-1) + 1e-6 < plan.lower_bound_ML).any():
        faults.append("the slowest rank of a cell is below the cell's lower bound")
    return faults


def _share_faults(plan: Plan) -> list[str]:
    is_forecast = plan.prediction.basis is not Basis.REPLAY
    if is_forecast:
        expected_Y = fractions(plan.quota_index_Q4, plan.quota_tokens_Q, plan.home_rank_LE).astype(np.int64)
    else:
        expected_Y = plan.quota_tokens_Q[plan.is_replica_Q]
    first = 0
    for block_BR in plan.shares.blocks():
        if block_BR.ndim != 2 or block_BR.shape[1] != plan.cluster.num_ranks:
            return [f"source shares have shape {block_BR.shape}, expected {plan.cluster.num_ranks} ranks"]
        if (block_BR < 0).any():
            return ["a source share is negative"]
        expected_B, first = expected_Y[first : first + len(block_BR)], first + len(block_BR)
        if first > len(expected_Y):
            continue
        if is_forecast and (block_BR != expected_B[:, None]).any():
            return ["source shares are not the fractions that their replicas' quotas give"]
        if not is_forecast and (block_BR.sum(axis=1, dtype=np.int64) != expected_B).any():
            return ["the source shares of a replica do not sum to its quota"]
    return [f"{first} source shares for {len(expected_Y)} replicas"] if first != len(expected_Y) else []


def _replica_faults(index_Q4: NDArray[np.integer], home_rank_LE: NDArray[np.integer], cluster: Cluster) -> list[str]:
    row_Q, layer_Q, expert_Q, rank_Q = index_Q4.T
    home_Q = home_rank_LE[layer_Q, expert_Q]
    faults = []
    if (home_Q // cluster.gpus_per_node != rank_Q // cluster.gpus_per_node).any():
        faults.append("a replica is not on the node of its home")
    if len(row_Q):
        used = np.zeros((int(row_Q.max()) + 1, home_rank_LE.shape[0], cluster.num_ranks), dtype=np.int64)
        np.add.at(used, (row_Q, layer_Q, rank_Q), 1)
        if used.max() > cluster.redundant_slots:
            faults.append(f"a rank holds {used.max()} replicas in {cluster.redundant_slots} redundant slots")
    return faults


def _load_faults(plan: Plan, load_MLE: NDArray[np.integer]) -> list[str]:
    planned_MLE = np.zeros((plan.num_rows, plan.model.num_layers, plan.model.num_experts), dtype=np.int64)
    if load_MLE.shape != planned_MLE.shape:
        return [f"the load has shape {load_MLE.shape}, expected {planned_MLE.shape}"]
    row_Q, layer_Q, expert_Q, _ = plan.quota_index_Q4.T
    np.add.at(planned_MLE, (row_Q, layer_Q, expert_Q), plan.quota_tokens_Q)
    num_wrong = int((planned_MLE != load_MLE).sum())
    return [f"the quotas of {num_wrong} (row, layer, expert) do not sum to the load"] if num_wrong else []
