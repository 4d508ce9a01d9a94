"""Plan again after a late change: what still holds of the previous plan is kept, and the reason says what that is.

- *Another schedule* of the same step. Home ranks stay, and so do quotas and bounds of every cell whose row has a load
  the previous plan had too, wherever that row was. A layer reorders only where its imbalance would rise by `MIN_GAIN`.
- *Other ranks*: a lost node, another cluster shape. Every rank that is still there keeps its experts as far as there is
  room, experts of lost ranks get homes on the others, and the step is solved from that placement.

M rows, L layers, E experts, R EP ranks, Q quotas, X experts of one rank.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.bound import lower_bound_ML
from relibra.planning.crossing import price_crossing
from relibra.planning.economy import MIN_GAIN, price_moves, price_replicas
from relibra.planning.load import StepLoad, home_loads, rank_loads
from relibra.planning.partition import fill
from relibra.planning.plan import Plan
from relibra.planning.reorder import reorder
from relibra.planning.replicate import Quotas, replicate
from relibra.planning.schedule import Schedule
from relibra.planning.solve import check_inputs, solve
from relibra.planning.split import split
from relibra.planning.summary import forecast, sentence
from relibra.planning.topology import Cluster, Model, PlanParams


def replan(
    previous: Plan,
    load: StepLoad,
    schedule: Schedule,
    cluster: Cluster | None = None,
    params: PlanParams | None = None,
    rank_was_R: NDArray[np.integer] | None = None,
    num_threads: int = 1,
) -> Plan:
    """Plan a step again for another schedule, another cluster, or both.

    Args:
        previous: the plan made before the change; experts are, or are on their way, where it says.
        load: token copies of every cell under the new schedule and cluster.
        schedule: the new schedule.
        cluster: the cluster as it is now; defaults to the previous one.
        params: how to plan; defaults to the previous ones.
        rank_was_R: the previous rank of every present rank, -1 for one that is new. After the loss of a node these are
            the ranks of the others. Defaults to equal numbers.
        num_threads: threads to plan layers on; the plan is the same for any number.

    Returns:
        A plan that passes `check_plan` with this load and is at most as imbalanced as the identity plan. Its forecast
        counts moves from the previous plan; experts of lost ranks count as moved.

    Raises:
        InvalidInput: the arguments contradict each other, or the ranks do not divide the experts.
    """
    model, cluster, params = previous.model, cluster or previous.cluster, params or previous.params
    check_inputs(load, schedule, model, cluster)
    was_R = _check_ranks(rank_was_R, previous.cluster, cluster)
    is_same_shape = replace(cluster, num_ep_groups=previous.cluster.num_ep_groups) == previous.cluster
    if not is_same_shape or params != previous.params or (was_R != np.arange(cluster.num_ranks)).any():
        return _move_ranks(previous, load, schedule, cluster, params, was_R, num_threads)
    return _move_rows(previous, load, schedule, cluster, num_threads)


def _check_ranks(
    rank_was_R: NDArray[np.integer] | None, previous_cluster: Cluster, cluster: Cluster
) -> NDArray[np.int64]:
    num_ranks, num_before = cluster.num_ranks, previous_cluster.num_ranks
    if rank_was_R is None:
        return np.where(np.arange(num_ranks) < num_before, np.arange(num_ranks), -1)
    was_R = np.asarray(rank_was_R)
    known = was_R[was_R >= 0] if was_R.shape == (num_ranks,) and was_R.dtype.kind in "iu" else None
    if known is None or (was_R < -1).any() or (known >= num_before).any() or len(np.unique(known)) != len(known):
        raise InvalidInput.of(
            "rank_was",
            expected=f"for each of the {num_ranks} ranks another one of the previous {num_before}, or -1",
            got=was_R.tolist(),
        )
    return was_R.astype(np.int64)


def _move_rows(previous: Plan, load: StepLoad, schedule: Schedule, cluster: Cluster, num_threads: int) -> Plan:
    model, kept_LE = previous.model, previous.home_rank_LE
    load_MLE, identity_LE = load.load_MLE, cluster.identity_placement(model)
    price = price_replicas(previous.params, load_MLE, model, cluster)
    hysteresis = price_moves(previous.params, model, cluster)
    num_rows, num_layers, _ = load_MLE.shape
    was_M = _find_rows(load_MLE, _load_of(previous))
    new_M = np.flatnonzero(was_M < 0)
    quotas, bound_ML = _take_rows(previous, was_M), np.zeros((num_rows, num_layers))
    bound_ML[was_M >= 0] = previous.lower_bound_ML[was_M[was_M >= 0]]
    if len(new_M):
        solved, _ = replicate(load_MLE[new_M], kept_LE, cluster, price, num_threads)
        quotas = _merge(quotas, replace(solved, index_Q4=_renumber(solved.index_Q4, 0, new_M)))
        bound_ML[new_M] = lower_bound_ML(load_MLE[new_M], kept_LE, cluster)

    slowest_L = rank_loads(quotas.index_Q4, quotas.tokens_Q, num_rows, num_layers, cluster.num_ranks).max(-1).sum(0)
    plain_L = home_loads(load_MLE, identity_LE, cluster.num_ranks).max(axis=-1).sum(axis=0)
    before_L = _imbalance_L(previous.rank_loads_MLR.max(-1).sum(0), _load_of(previous))
    is_worse_L = _imbalance_L(slowest_L, load_MLE) > (1 + MIN_GAIN) * before_L
    home_LE = kept_LE.copy()
    why_reordered = "every layer keeps its homes"
    worse_X = np.flatnonzero(is_worse_L | (slowest_L > plain_L))
    if len(worse_X):
        crossing_LNE = price_crossing(load, cluster, previous.params)
        home_LE[worse_X], why_reordered = reorder(
            load_MLE[:, worse_X],
            kept_LE[worse_X],
            identity_LE[worse_X],
            cluster,
            price,
            previous.params.seed,
            num_threads,
            hysteresis,
            None if crossing_LNE is None else crossing_LNE[worse_X],
        )
    moved_X = np.flatnonzero((home_LE != kept_LE).any(axis=1))
    if len(moved_X):
        solved, _ = replicate(load_MLE[:, moved_X], home_LE[moved_X], cluster, price, num_threads)
        stays_Q = ~np.isin(quotas.index_Q4[:, 1], moved_X)
        quotas = Quotas(index_Q4=quotas.index_Q4[stays_Q], tokens_Q=quotas.tokens_Q[stays_Q])
        quotas = _merge(quotas, replace(solved, index_Q4=_renumber(solved.index_Q4, 1, moved_X)))
        bound_ML[:, moved_X] = lower_bound_ML(load_MLE[:, moved_X], home_LE[moved_X], cluster)

    numbers = forecast(load_MLE, home_LE, kept_LE, quotas, bound_ML, model, cluster)
    num_reused = (num_rows - len(new_M)) * (num_layers - len(moved_X))
    reused = f"{num_reused} of {num_rows * num_layers} cells reuse the quotas they had"
    return replace(
        previous,
        cluster=cluster,
        schedule=schedule,
        home_rank_LE=home_LE,
        quota_index_Q4=quotas.index_Q4,
        quota_tokens_Q=quotas.tokens_Q,
        shares=split(load, quotas, home_LE),
        lower_bound_ML=bound_ML,
        forecast=numbers,
        reason=sentence(numbers, [reused, why_reordered]),
        repacked=False,
    )


def _move_ranks(
    previous: Plan,
    load: StepLoad,
    schedule: Schedule,
    cluster: Cluster,
    params: PlanParams,
    was_R: NDArray[np.int64],
    num_threads: int,
) -> Plan:
    model = previous.model
    kept_LE = _keep_homes(previous.home_rank_LE, load.load_MLE, was_R, model, cluster)
    start_LE = _house(kept_LE, load.load_MLE.sum(axis=0), model, cluster)
    plan = solve(load, schedule, model, cluster, params, start_LE, num_threads=num_threads)
    num_stay = int((plan.home_rank_LE == kept_LE).sum())
    num_moved = kept_LE.size - num_stay
    numbers = replace(
        plan.forecast,
        num_moved_experts=num_moved,
        reorder_size_bytes=num_moved * cluster.num_ep_groups * model.expert_state_size_bytes,
    )
    num_lost = int((~np.isin(previous.home_rank_LE, was_R)).sum())
    reused = f"{num_stay} of {kept_LE.size} experts stay where they were, {num_lost} were on ranks that are gone"
    return replace(plan, forecast=numbers, reason=f"{plan.reason}; {reused}")


def _load_of(plan: Plan) -> NDArray[np.int64]:
    load_MLE = np.zeros((plan.num_rows, plan.model.num_layers, plan.model.num_experts), dtype=np.int64)
    np.add.at(load_MLE, tuple(plan.quota_index_Q4[:, :3].T), plan.quota_tokens_Q)
    return load_MLE


def _imbalance_L(slowest_L: NDArray[np.int64], load_MLE: NDArray[np.int64]) -> NDArray[np.float64]:
    """Imbalance of every layer, but for a factor R."""
    imbalance_L: NDArray[np.float64] = slowest_L / np.maximum(load_MLE.sum(axis=(0, 2)), 1)
    return imbalance_L


def _find_rows(load_MLE: NDArray[np.int64], previous_MLE: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the previous row of equal load for every row, -1 where there is none."""
    row_of = {load_LE.tobytes(): row for row, load_LE in enumerate(previous_MLE)}
    return np.array([row_of.get(load_LE.tobytes(), -1) for load_LE in load_MLE], dtype=np.int64)


def _take_rows(plan: Plan, was_M: NDArray[np.int64]) -> Quotas:
    """Quotas of the plan under the numbers its rows have now."""
    row_Q = plan.quota_index_Q4[:, 0]
    first_M, end_M = np.searchsorted(row_Q, was_M), np.searchsorted(row_Q, was_M, side="right")
    taken_Q = np.concatenate([np.arange(first, end) for first, end in zip(first_M, end_M, strict=True)])
    index_Q4 = plan.quota_index_Q4[taken_Q]
    index_Q4[:, 0] = np.repeat(np.arange(len(was_M)), end_M - first_M)
    return Quotas(index_Q4=index_Q4, tokens_Q=plan.quota_tokens_Q[taken_Q])


def _renumber(index_Q4: NDArray[np.int32], column: int, name_X: NDArray[np.int64]) -> NDArray[np.int32]:
    index_Q4 = index_Q4.copy()
    index_Q4[:, column] = name_X[index_Q4[:, column]]
    return index_Q4


def _merge(one: Quotas, other: Quotas) -> Quotas:
    index_Q4 = np.concatenate([one.index_Q4, other.index_Q4])
    order_Q = np.lexsort(index_Q4.T[::-1])
    return Quotas(index_Q4=index_Q4[order_Q], tokens_Q=np.concatenate([one.tokens_Q, other.tokens_Q])[order_Q])


def _keep_homes(
    previous_LE: NDArray[np.int32],
    load_MLE: NDArray[np.int64],
    was_R: NDArray[np.int64],
    model: Model,
    cluster: Cluster,
) -> NDArray[np.int32]:
    """Homes under the ranks' present numbers, -1 for experts that lose theirs.

    Where a rank had more experts than it can be home to now, those that go are spread over light and heavy ones.
    """
    kept_LE = np.full_like(previous_LE, -1)
    room, load_LE = cluster.experts_per_rank(model), load_MLE.sum(axis=0)
    for layer, rank in np.ndindex(len(previous_LE), cluster.num_ranks):
        expert_X = np.flatnonzero(previous_LE[layer] == was_R[rank])
        expert_X = expert_X[np.argsort(-load_LE[layer, expert_X], kind="stable")]
        num_kept = min(room, len(expert_X))
        kept_LE[layer, expert_X[np.arange(num_kept) * len(expert_X) // max(num_kept, 1)]] = rank
    return kept_LE


def _house(kept_LE: NDArray[np.int32], load_LE: NDArray[np.int64], model: Model, cluster: Cluster) -> NDArray[np.int32]:
    """Give every expert without a home one on the lightest rank with room, heaviest expert first."""
    home_LE = kept_LE.copy()
    room = cluster.experts_per_rank(model)
    for home_E, load_E in zip(home_LE, load_LE, strict=True):
        is_housed_E = home_E >= 0
        held_R = np.zeros(cluster.num_ranks, dtype=np.int64)
        np.add.at(held_R, home_E[is_housed_E], load_E[is_housed_E])
        room_R = room - np.bincount(home_E[is_housed_E], minlength=cluster.num_ranks)
        home_E[~is_housed_E] = fill(load_E[~is_housed_E], held_R, room_R)
    return home_LE
