"""The entry point of planning: takes the load of a step and returns its plan, with a proven bound.

M rows, L layers, E experts, R EP ranks.
"""

from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.bounds.step import step_bound_L
from relibra.planning.bounds.time import modelled_time
from relibra.planning.check import check_placement
from relibra.planning.expected.replicas import foresee_layer
from relibra.planning.forecasts import NO_MARGIN, Margin
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad, home_loads, imbalance
from relibra.planning.memory import ActivationMemory
from relibra.planning.peak import StepMemory, find_peak
from relibra.planning.placement.reorder import reorder
from relibra.planning.plan import Level, Plan, replicated_loads
from relibra.planning.prices import FREE_MOVES, ReplicaPrice, price_moves, price_replicas
from relibra.planning.replicas.layer_replicas import KnownReplicas
from relibra.planning.replicas.replicate import FREE, in_all_rows, replicate
from relibra.planning.schedule import Packing, Schedule
from relibra.planning.split import split_step
from relibra.planning.summary import predict, sentence
from relibra.planning.traffic import Traffic


def solve(
    load: StepLoad,
    schedule: Schedule,
    model: Model,
    cluster: Cluster,
    params: PlanParams | None = None,
    previous_home_LE: NDArray[np.integer] | None = None,
    packing: Packing | None = None,
    num_threads: int = 1,
    level: Level = Level.MICRO_BATCHES,
    seen: StepLoad | None = None,
    move_bytes_per_us: float | None = None,
    memory_margin: Margin = NO_MARGIN,
) -> Plan:
    """Plan all cells of a step.

    Args:
        load: token copies of every cell by source rank.
        schedule: the schedule that the load was summed under; the plan carries it.
        model: the MoE layers.
        cluster: the EP groups.
        params: how to plan; defaults to `PlanParams()`.
        previous_home_LE: the current placement; defaults to the identity placement.
        packing: the result of `pack`, if it chose the schedule; the search starts from its placement.
        num_threads: threads that plan layers; the plan is the same for any number.
        level: what is known of the step.
        seen: micro-batches that the step may have. Below level micro-batches, homes and replicas are chosen for them,
            and the replicas of a layer are the same in all rows of the plan; by default the rows of `load`.
        move_bytes_per_us: the rate at which a rank was measured to move experts; by default that of the cost model.
        memory_margin: at level history, what the memory of the micro-batches seen is multiplied with.

    Returns:
        A plan that passes `check_plan` with this load. If its micro-batches are known, its slowest ranks have at most
        the tokens that they have under the identity plan; where dispatch has a price, this holds for the modelled time
        of experts and dispatch instead. Equal arguments give the same plan on any host.

    Raises:
        InvalidInput: the arguments contradict each other, or the ranks do not divide the experts.
        InvalidPlan: `previous_home_LE` is not a placement.
    """
    asked = params or PlanParams()
    solve_once = partial(
        _solve,
        load,
        schedule,
        model,
        cluster,
        asked,
        previous_home_LE,
        packing,
        num_threads,
        level,
        seen,
        memory_margin=memory_margin,
    )
    plan = solve_once(move_bytes_per_us)
    if plan.prediction.excess:
        # A step that fails costs more than any copy or move.
        plan = min(plan, solve_once(move_bytes_per_us, is_free=True), key=_peak_bytes)
    return plan


def _peak_bytes(plan: Plan) -> int:
    return 0 if plan.prediction.memory is None else plan.prediction.memory.after.size_bytes or 0


def _solve(
    load: StepLoad,
    schedule: Schedule,
    model: Model,
    cluster: Cluster,
    asked: PlanParams,
    previous_home_LE: NDArray[np.integer] | None,
    packing: Packing | None,
    num_threads: int,
    level: Level,
    seen: StepLoad | None,
    move_bytes_per_us: float | None,
    *,
    memory_margin: Margin,
    is_free: bool = False,
) -> Plan:
    """Plan a step as `solve` does; if `is_free`, as if copies, moves and dispatch had no price."""
    params = asked.counting_copies(model, cluster)
    identity_LE = cluster.identity_placement(model)
    _check_inputs(load, schedule, model, cluster)
    previous_LE = identity_LE
    if previous_home_LE is not None:
        check_placement(previous_home_LE, model, cluster)
        previous_LE = previous_home_LE.astype(np.int32)
    load_MLE = load.load_MLE

    start_LE = previous_LE if packing is None else packing.home_LE
    is_foreseen = level < Level.MICRO_BATCHES
    chosen_for = load if seen is None or not is_foreseen else seen
    price = FREE if is_free else price_replicas(params, chosen_for.load_MLE, model, cluster)
    hysteresis = FREE_MOVES if is_free else price_moves(params, model, cluster, move_bytes_per_us)
    traffic = None if is_free else Traffic.of(chosen_for, cluster, params)
    known = KnownReplicas()
    home_LE, why_reordered = identity_LE, "homes stay, as the job asks"
    if not params.homes_stay:
        home_LE, why_reordered = reorder(
            chosen_for.load_MLE,
            start_LE,
            identity_LE,
            cluster,
            price,
            params.seed,
            num_threads,
            hysteresis,
            traffic,
            known,
        )
        if params.cost is not None and move_bytes_per_us is not None:
            why_reordered += f", at the {move_bytes_per_us / 1e3:.3g} GB/s per rank of earlier reorders"
    if is_free:
        why_reordered += "; moves and copies count as free, because a rank would be over its memory budget"
    if packing is not None:
        why_reordered = f"sequences are packed for a placement that moves {(home_LE != previous_LE).sum()} experts"
    choose = foresee_layer if is_foreseen else None
    index_Y4, why_replicated = replicate(
        chosen_for.load_MLE, home_LE, cluster, price, num_threads, choose, traffic, known
    )
    imbalance_known = seen_NLR = None
    if is_foreseen:
        imbalance_known = _imbalance_known(chosen_for, home_LE, cluster, price, num_threads, traffic)
        seen_NLR = _rank_loads(chosen_for.load_MLE, home_LE, index_Y4, cluster)
        index_Y4 = in_all_rows(index_Y4, load.num_rows)
    traffic = traffic if chosen_for is load and not is_free else Traffic.of(load, cluster, params)
    crossing_MLE = np.zeros_like(load_MLE) if traffic is None else traffic.crossing_MLE(home_LE)
    while True:
        tokens_Y, crossing_Y = split_step(
            load_MLE, crossing_MLE, home_LE, index_Y4, cluster.gpus_per_node, cluster.num_ranks
        )
        if is_foreseen or (tokens_Y > 0).all():
            break
        index_Y4 = index_Y4[tokens_Y > 0]  # this load has no use for the others, and no other load will come
    bound_ML, floor_L = lower_bound_ML(load_MLE, home_LE, cluster), step_bound_L(load_MLE, cluster)
    planned_MLR = replicated_loads(load_MLE, home_LE, index_Y4, tokens_Y, cluster.num_ranks)
    identity_MLR = home_loads(load_MLE, identity_LE, cluster.num_ranks)
    prediction = replace(
        predict(
            planned_MLR,
            identity_MLR,
            bound_ML,
            floor_L,
            model,
            cluster,
            num_moved=int((home_LE != previous_LE).sum()),
            num_replicas=len(index_Y4),
            level=level,
        ),
        imbalance_known=imbalance_known,
        memory=_memory(
            identity_MLR if seen_NLR is None else home_loads(chosen_for.load_MLE, identity_LE, cluster.num_ranks),
            planned_MLR if seen_NLR is None else seen_NLR,
            level,
            params.memory,
            cluster,
            memory_margin.factor,
        ),
    )
    if schedule.is_forward_only:
        prediction = replace(prediction, memory=None)
    if traffic is not None and params.cost is not None:
        time = modelled_time(
            load_MLE,
            home_LE,
            index_Y4,
            tokens_Y,
            crossing_MLE,
            crossing_Y,
            bound_ML,
            floor_L,
            cluster,
            traffic,
            params.cost,
        )
        prediction = replace(
            prediction, time_us=time.planned_us, time_bound_us=time.bound_us, time_floor_us=time.floor_us
        )

    return Plan(
        model=model,
        cluster=cluster,
        params=asked,
        schedule=schedule,
        home_rank_LE=home_LE,
        replica_index_Y4=index_Y4,
        load_MLE=load_MLE,
        replica_tokens_Y=tokens_Y,
        lower_bound_ML=bound_ML,
        prediction=prediction,
        reason=sentence(prediction, [*filter(None, (why_reordered, why_replicated, memory_margin.reason))]),
        repacked=packing is not None,
    )


def _imbalance_known(
    seen: StepLoad,
    home_LE: NDArray[np.int32],
    cluster: Cluster,
    price: ReplicaPrice,
    num_threads: int,
    traffic: Traffic | None,
) -> float:
    """Return the imbalance of micro-batches under replicas that are chosen for each one of them."""
    index_Y4, _ = replicate(seen.load_MLE, home_LE, cluster, price, num_threads, traffic=traffic)
    return imbalance(_rank_loads(seen.load_MLE, home_LE, index_Y4, cluster))


def _rank_loads(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], index_Y4: NDArray[np.int32], cluster: Cluster
) -> NDArray[np.int64]:
    """Return the token copies that each rank computes once ranks have split them, `[M, L, R]`."""
    no_crossing_MLE = np.zeros_like(load_MLE)  # where tokens come from decides which of them a copy gets, not how many
    tokens_Y, _ = split_step(load_MLE, no_crossing_MLE, home_LE, index_Y4, cluster.gpus_per_node, cluster.num_ranks)
    return replicated_loads(load_MLE, home_LE, index_Y4, tokens_Y, cluster.num_ranks)


def _memory(
    identity_MLR: NDArray[np.int64],
    planned_MLR: NDArray[np.int64],
    level: Level,
    memory: ActivationMemory,
    cluster: Cluster,
    margin: float,
) -> StepMemory:
    """Return what a step promises of memory, from the rows of the step or, below level micro-batches, of those seen."""
    num_ep_groups = cluster.num_ep_groups if level is Level.MICRO_BATCHES else 1
    if level is Level.STEP:  # how large its micro-batches will be is not known
        memory = replace(memory, kept_bytes=0, working_bytes=0)
    before, after = (find_peak(loads_MLR, memory, num_ep_groups) for loads_MLR in (identity_MLR, planned_MLR))
    if after.size_bytes is not None:
        after = replace(after, size_bytes=ceil(after.size_bytes * margin))
    return StepMemory(before=before, after=after, budget_bytes=memory.budget_bytes, margin=margin)


def _check_inputs(load: StepLoad, schedule: Schedule, model: Model, cluster: Cluster) -> None:
    """Refuse a load that does not belong to this schedule, model and cluster.

    Raises:
        InvalidInput: names the expected shape, or the negative load.
    """
    schedule.check(cluster)
    expected = (schedule.num_rows(cluster), cluster.num_ranks, model.num_layers, model.num_experts)
    got = (load.num_rows, load.num_ranks, *load.counts_SLE.shape[1:])
    if got != expected:
        raise InvalidInput.of("load", expected=f"[M, R, L, E] = {expected}", got=got)
    if load.load_MLE.size and load.load_MLE.min() < 0:
        raise InvalidInput.of("load", expected="at least 0 tokens everywhere", got=int(load.load_MLE.min()))
