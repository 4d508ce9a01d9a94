"""Pack: choose the micro-batch and the source rank of every sequence, under a token budget.

Gradient accumulation sums over all micro-batches of a step, so sequences may be in any of them. A good choice lowers
the floor of the step. Replicas even out only the ranks of a node, so no replication gets below the load of the largest
node, summed over cells; and if rows differ in the experts they use, no placement suits them all.

    length-balanced schedule -> rows made alike -> reorder -> rows fitted to that placement -> source ranks

Where dispatch has a price, rows and source ranks are then fitted to the placement by the time of experts and dispatch,
the placement to them, and so on while the time falls. So sequences start on the nodes of the experts that they use, and
experts move to the nodes of the sequences that use them.

Lengths stay balanced: caps allow `SLACK` above the length-balanced schedule. RoutePack (2026) places experts by the
totals of the batch and packs for that placement. Making rows alike first gets further: the placement then suits all
rows, and packing for it has less left to repair.

S sequences, M rows, L layers, E experts, R EP ranks, N nodes, P groups of ranks. An axis named 2 is (tokens, attention
work).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.check import check_placement
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.packing.by_time import fit_by_time
from relibra.planning.packing.judge import Judge, Judged
from relibra.planning.packing.length_balance import length_balanced, schedule_of
from relibra.planning.packing.rows import Caps, even_rows, lower_floor, mix_loads
from relibra.planning.packing.sources import keep_local
from relibra.planning.schedule import Packing, Schedule

SLACK = Fraction(1, 10)
"""How far the slowest source rank of a micro-batch may be above that of the length-balanced schedule, in tokens and in
attention work. The tokens of a row may leave the range of that schedule by half of this, as a part of the mean row."""

_MAX_ROUNDS = 4
"""How often rows, source ranks and the placement are fitted to each other at most."""


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

    `judge` says what a schedule costs: the load of its largest nodes, and the time of dispatch where that has a price.
    The cost of the packing is at most that of the length-balanced schedule. It is also at most that of `start`, if
    `start` keeps the budget and the balance of lengths.

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
    params = (params or PlanParams()).counting_copies(model, cluster)
    length_S = np.asarray(length_S, dtype=np.int64)
    _check(counts_SLE, length_S, start, model, cluster)
    previous_LE = cluster.identity_placement(model)
    if previous_home_LE is not None:
        check_placement(previous_home_LE, model, cluster)
        previous_LE = previous_home_LE.astype(np.int32)
    if token_budget is None:
        token_budget = int(_sizes_MR(start, length_S[:, None], cluster).max())
    size_S2 = np.stack([length_S, length_S**2], axis=1)
    fits = _sizes_MR(start, length_S[:, None], cluster).max() <= token_budget
    balanced = length_balanced(length_S, start.num_micro_batches, cluster, token_budget, start if fits else None)
    caps = _caps_of(balanced, size_S2, cluster, token_budget)
    judge = Judge(counts_SLE=counts_SLE, model=model, cluster=cluster, params=params, previous_LE=previous_LE)
    search = _Search(
        judge=judge, size_S2=size_S2, caps=caps, num_micro_batches=start.num_micro_batches, seed=params.seed
    )
    schedules = [balanced]
    if _keeps(start, balanced, size_S2, cluster, caps, token_budget):
        schedules.append(start)
    even = search.with_even_rows(balanced) if len(caps.node_M) > 1 else balanced
    price = judge.price_under(balanced)
    chosen = search.packed_by_time(schedules, even, price) if price else search.packed_by_tokens(schedules, even)
    return chosen.packing, _reason(judge.judge(balanced), chosen, judge, bool(price))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The searches for better places of sequences."""

    judge: Judge
    size_S2: NDArray[np.int64]
    caps: Caps
    num_micro_batches: int
    seed: int

    def with_even_rows(self, start: Schedule) -> Schedule:
        """Make the expert loads of all rows alike."""
        mixed_SD, cell_S = mix_loads(self.judge.counts_SLE), self._cells(start)
        return self._schedule(even_rows(mixed_SD, self.size_S2, cell_S, self._num_ranks, self.caps, self.seed))

    def packed_by_tokens(self, schedules: Sequence[Schedule], even: Schedule) -> Judged:
        """Pack where dispatch is free: fit even rows to their placement, then let sequences start near their experts.

        Args:
            schedules: schedules that the packing must not be worse than.
            even: a schedule whose rows have like loads.
        """
        candidates = [self._with_lower_floor(self.judge.judge(even)), *map(self.judge.judge, schedules)]
        chosen = min(candidates, key=_cost)
        local_SN, cell_S = self.judge.local_SN(chosen.packing.home_LE), self._cells(chosen.packing.schedule)
        size = self.judge.cluster.gpus_per_node
        cell_S = keep_local(local_SN, self.size_S2, cell_S, size, self.caps, self.seed)
        return replace(chosen, packing=replace(chosen.packing, schedule=self._schedule(cell_S)))

    def packed_by_time(self, schedules: Sequence[Schedule], even: Schedule, price: int) -> Judged:
        """Pack where dispatch has a price. Args as those of `packed_by_tokens`.

        Places and homes are fitted to each other in turns, so where they end depends on where they begin. From sources
        that have nothing in common they may find no locality, and from sequences that started near their experts they
        may keep too much of it. Both are tried.
        """
        free = replace(self, judge=self.judge.with_free_dispatch())
        local = free.packed_by_tokens(schedules, even).packing.schedule
        begins = [self.judge.judge(each) for each in (*schedules, even)]
        begins = [min(begins, key=_cost), self.judge.judge(local)]
        return min((self._fitted_by_time(each, price) for each in begins), key=_cost)

    def _with_lower_floor(self, start: Judged) -> Judged:
        """Fit rows to their placement."""
        load_SLP, cell_S = self.judge.load_SLP(start.packing.home_LE), self._cells(start.packing.schedule)
        cell_S = lower_floor(load_SLP, self.size_S2, cell_S, self._num_ranks, self.caps, self.seed)
        return self.judge.judge(self._schedule(cell_S), start.packing.home_LE)

    def _fitted_by_time(self, start: Judged, price: int) -> Judged:
        """Fit rows and source ranks to the placement, then the placement to them, as long as that lowers the cost."""
        best, cluster = start, self.judge.cluster
        for _ in range(_MAX_ROUNDS):
            home_LE, cell_S = best.packing.home_LE, self._cells(best.packing.schedule)
            load_SLP = self.judge.load_SLP(home_LE)
            cell_S = fit_by_time(load_SLP, self.size_S2, cell_S, price, cluster, self.caps, self.seed)
            schedule = self._schedule(cell_S)
            found = min(self.judge.judge(schedule, home_LE), self.judge.judge(schedule), key=_cost)
            if found.cost >= best.cost:
                break
            best = found
        return best

    @property
    def _num_ranks(self) -> int:
        return self.judge.cluster.num_ranks

    def _cells(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the (row, source rank) of every sequence as one number, row * R + rank."""
        return schedule.row_S.astype(np.int64) * self._num_ranks + schedule.source_rank_S

    def _schedule(self, cell_S: NDArray[np.int64]) -> Schedule:
        return schedule_of(cell_S, self.num_micro_batches, self.judge.cluster)


def _cost(judged: Judged) -> int:
    return judged.cost


def _reason(before: Judged, after: Judged, judge: Judge, counts_time: bool) -> str:
    cluster, num_copies = judge.cluster, max(int(judge.counts_SLE.sum(dtype=np.int64)), 1)
    groups = "nodes" if judge.num_groups == cluster.num_nodes else "ranks"
    what = f"modelled time of experts and dispatch at {groups}" if counts_time else f"floor of {groups}"
    cost, lower_cost = (each.cost * judge.num_groups / num_copies for each in (before, after))
    stays, more_stays = (_num_local(each.packing, judge) / num_copies for each in (before, after))
    reason = (
        f"packing brings the {what} from {cost:.4f} to {lower_cost:.4f}, and the share of tokens that stay on their "
        f"node from {stays:.1%} to {more_stays:.1%}"
    )
    if cluster.num_nodes == 1:
        reason += "; with one node, replicas reach any balance that packing could reach"
    return reason


def _check(
    counts_SLE: NDArray[np.integer], length_S: NDArray[np.int64], start: Schedule, model: Model, cluster: Cluster
) -> None:
    start.check(cluster)
    expected = (start.num_sequences, model.num_layers, model.num_experts)
    if counts_SLE.shape != expected:
        raise InvalidInput.of("counts", expected=f"shape [S, L, E] = {expected}", got=counts_SLE.shape)
    if length_S.shape != expected[:1] or length_S.min() < 0:
        raise InvalidInput.of("lengths", expected=f"{expected[0]} numbers, none below 0", got=length_S)


def _num_local(packing: Packing, judge: Judge) -> int:
    """Return the number of token copies whose expert has its home on the node of their source rank."""
    local_SN = judge.local_SN(packing.home_LE)
    node_S = packing.schedule.source_rank_S // judge.cluster.gpus_per_node
    return int(local_SN[np.arange(len(local_SN)), node_S].sum())


def _sizes_MR(schedule: Schedule, size_S2: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    """Sum the sizes of sequences by row and source rank: `[M, R, ...]`."""
    size_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks, *size_S2.shape[1:]), dtype=np.int64)
    np.add.at(size_MR, (schedule.row_S, schedule.source_rank_S), size_S2)
    return size_MR


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
