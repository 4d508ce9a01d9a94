"""Pack: choose the micro-batch and the source rank of every sequence, under a token budget.

Gradient accumulation sums over all micro-batches of a step, so sequences may be in any of them. A good choice lowers
the floor of the step. Replicas even out only the ranks of a node, so no replication gets below the load of the largest
node, summed over cells; and if rows differ in the experts they use, no placement suits them all.

    length-balanced schedule -> rows made alike -> reorder -> rows fitted to that placement -> source ranks

Lengths stay balanced: caps allow `SLACK` above the length-balanced schedule. RoutePack (2026) places experts by the
totals of the batch and packs for that placement. Making rows alike first gets further: the placement then suits all
rows, and packing for it has less left to repair.

S sequences, M rows, L layers, E experts, R EP ranks, N nodes, P groups of ranks. An axis named 2 is (tokens, attention
work).
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.check import check_placement
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import home_loads
from relibra.planning.packing.length_balance import length_balanced, schedule_of
from relibra.planning.packing.rows import Caps, even_rows, group_loads, lower_floor, mix_loads
from relibra.planning.packing.sources import keep_local
from relibra.planning.placement.reorder import reorder
from relibra.planning.prices import price_moves, price_replicas
from relibra.planning.schedule import Packing, Schedule

SLACK = Fraction(1, 10)
"""How far the slowest source rank of a micro-batch may be above that of the length-balanced schedule, in tokens and in
attention work. The tokens of a row may leave the range of that schedule by half of this, as a part of the mean row."""


def pack(
    counts_SLE: NDArray[np.integer],
    length_S: NDArray[np.int64],
    start: Schedule,
    model: Model,
    cluster: Cluster,
    token_budget: int | None = None,
    params: PlanParams | None = None,
    previous_home_LE: NDArray[np.integer] | None = None,
) -> tuple[Packing, str]:
    """Pack the sequences of a step into as many micro-batches as `start` has; return the packing and why.

    The floor of a schedule is the load of the largest node, summed over cells, under the placement that `reorder`
    chooses for it; with one node or no slots, it is that of the largest rank. The floor of the packing is at most that
    of the length-balanced schedule. It is also at most that of `start`, if `start` keeps the budget and the balance of
    lengths.

    Args:
        counts_SLE: token copies that each sequence routes to every expert.
        length_S: tokens of every sequence, for budget and attention.
        start: the schedule without packing.
        model: the MoE layers.
        cluster: the EP groups.
        token_budget: the most tokens of a source rank in a micro-batch; by default what `start` needs.
        params: how to plan; defaults to `PlanParams()`.
        previous_home_LE: the current placement; defaults to the identity placement.

    Raises:
        InvalidInput: a sequence is longer than the budget, not all sequences fit, or the arguments contradict each
            other.
        InvalidPlan: `previous_home_LE` is not a placement.
    """
    params = params or PlanParams()
    length_S = np.asarray(length_S, dtype=np.int64)
    _check(counts_SLE, length_S, start, model, cluster)
    identity_LE = cluster.identity_placement(model)
    previous_LE = identity_LE
    if previous_home_LE is not None:
        check_placement(previous_home_LE, model, cluster)
        previous_LE = previous_home_LE.astype(np.int32)
    if token_budget is None:
        token_budget = int(_sizes_MR(start, length_S[:, None], cluster).max())
    size_S2 = np.stack([length_S, length_S**2], axis=1)
    fits = _sizes_MR(start, length_S[:, None], cluster).max() <= token_budget
    balanced = length_balanced(length_S, start.num_micro_batches, cluster, token_budget, start if fits else None)
    caps = _caps_of(balanced, size_S2, cluster, token_budget)
    num_groups = cluster.num_nodes if cluster.num_nodes > 1 and cluster.redundant_slots else cluster.num_ranks

    def floor_of(schedule: Schedule, home_LE: NDArray[np.int32] | None = None) -> tuple[int, Packing]:
        load_MLE = _loads(counts_SLE, schedule, cluster)
        if home_LE is None:
            price, hysteresis = price_replicas(params, load_MLE, model, cluster), price_moves(params, model, cluster)
            home_LE, _ = reorder(load_MLE, previous_LE, identity_LE, cluster, price, params.seed, hysteresis=hysteresis)
        group_LE = home_LE // np.int32(cluster.num_ranks // num_groups)
        floor = int(home_loads(load_MLE, group_LE, num_groups).max(axis=-1).sum())
        return floor, Packing(schedule=schedule, home_LE=home_LE)

    def schedule(cell_S: NDArray[np.int64]) -> Schedule:
        return schedule_of(cell_S, start.num_micro_batches, cluster)

    candidates = [floor_of(balanced)]
    cell_S = _cells(balanced, cluster)
    if len(caps.node_M) > 1:
        cell_S = even_rows(mix_loads(counts_SLE), size_S2, cell_S, cluster.num_ranks, caps, params.seed)
        _, alike = floor_of(schedule(cell_S))
        group_LE = alike.home_LE // np.int32(cluster.num_ranks // num_groups)
        load_SLP = group_loads(counts_SLE, group_LE, num_groups)
        cell_S = lower_floor(load_SLP, size_S2, cell_S, cluster.num_ranks, caps, params.seed)
        candidates.append(floor_of(schedule(cell_S), alike.home_LE))
    if _keeps(start, balanced, size_S2, cluster, caps, token_budget):
        candidates.append(floor_of(start))
    floor, packing = min(candidates, key=lambda candidate: candidate[0])

    node_LE = packing.home_LE // np.int32(cluster.gpus_per_node)
    local_SN = group_loads(counts_SLE, node_LE, cluster.num_nodes).sum(axis=1)
    stays = _num_local(local_SN, packing.schedule, cluster)
    cell_S = keep_local(local_SN, size_S2, _cells(packing.schedule, cluster), cluster.gpus_per_node, caps, params.seed)
    packing = replace(packing, schedule=schedule(cell_S))
    stays_now = _num_local(local_SN, packing.schedule, cluster)
    total = max(int(local_SN.sum()), 1)
    reason = (
        f"packing brings the floor of {'nodes' if num_groups == cluster.num_nodes else 'ranks'} from "
        f"{candidates[0][0] * num_groups / total:.4f} to {floor * num_groups / total:.4f}, and the share of tokens "
        f"that stay on their node from {stays / total:.1%} to {stays_now / total:.1%}"
    )
    if cluster.num_nodes == 1:
        reason += "; with one node, replicas reach any balance that packing could reach"
    return packing, reason


def _check(
    counts_SLE: NDArray[np.integer], length_S: NDArray[np.int64], start: Schedule, model: Model, cluster: Cluster
) -> None:
    start.check(cluster)
    expected = (start.num_sequences, model.num_layers, model.num_experts)
    if counts_SLE.shape != expected:
        raise InvalidInput.of("counts", expected=f"shape [S, L, E] = {expected}", got=counts_SLE.shape)
    if length_S.shape != expected[:1] or length_S.min() < 0:
        raise InvalidInput.of("lengths", expected=f"{expected[0]} numbers, none below 0", got=length_S)


def _cells(schedule: Schedule, cluster: Cluster) -> NDArray[np.int64]:
    """Return the (row, source rank) of every sequence as one number, row * R + rank."""
    return schedule.row_S.astype(np.int64) * cluster.num_ranks + schedule.source_rank_S


def _num_local(local_SN: NDArray[np.int64], schedule: Schedule, cluster: Cluster) -> int:
    """Return the number of token copies whose expert has its home on the node of their source rank."""
    return int(local_SN[np.arange(len(local_SN)), schedule.source_rank_S // cluster.gpus_per_node].sum())


def _sizes_MR(schedule: Schedule, size_S2: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    """Sum the sizes of sequences by row and source rank: `[M, R, ...]`."""
    size_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks, *size_S2.shape[1:]), dtype=np.int64)
    np.add.at(size_MR, (schedule.row_S, schedule.source_rank_S), size_S2)
    return size_MR


def _loads(counts_SLE: NDArray[np.integer], schedule: Schedule, cluster: Cluster) -> NDArray[np.int64]:
    load_MLE = np.zeros((schedule.num_rows(cluster), *counts_SLE.shape[1:]), dtype=np.int64)
    for row, counts_LE in zip(schedule.row_S, counts_SLE, strict=True):
        load_MLE[row] += counts_LE
    return load_MLE


def _with_slack(number: NDArray[np.int64]) -> NDArray[np.int64]:
    return number + number * SLACK.numerator // SLACK.denominator


def _caps_of(balanced: Schedule, size_S2: NDArray[np.int64], cluster: Cluster, token_budget: int) -> Caps:
    size_MR2 = _sizes_MR(balanced, size_S2, cluster)
    rank_M2 = _with_slack(size_MR2.max(axis=1))
    rank_M2[:, 0] = np.minimum(rank_M2[:, 0], token_budget)
    tokens_MN = size_MR2[..., 0].reshape(len(size_MR2), cluster.num_nodes, -1).sum(axis=-1)
    tokens_M = tokens_MN.sum(axis=1)
    margin = int(tokens_M.mean()) * SLACK.numerator // (2 * SLACK.denominator)
    return Caps(
        rank_M2=rank_M2,
        node_M=_with_slack(tokens_MN.max(axis=1)),
        row_2=np.array([tokens_M.min() - margin, tokens_M.max() + margin]),
    )


def _keeps(
    start: Schedule, balanced: Schedule, size_S2: NDArray[np.int64], cluster: Cluster, caps: Caps, token_budget: int
) -> bool:
    """Return whether `start` keeps the budget, and lengths about as balanced as in the length-balanced schedule."""
    size_MR2, balanced_MR2 = (_sizes_MR(schedule, size_S2, cluster) for schedule in (start, balanced))
    tokens_M = size_MR2[..., 0].sum(axis=1)
    return bool(
        size_MR2[..., 0].max() <= token_budget
        and (size_MR2.max(axis=1).sum(axis=0) <= _with_slack(balanced_MR2.max(axis=1).sum(axis=0))).all()
        and tokens_M.min() >= caps.row_2[0]
        and tokens_M.max() <= caps.row_2[1]
    )
