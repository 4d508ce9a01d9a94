"""Pack: choose the micro-batch and the source rank of every sequence.

Gradient accumulation sums over all micro-batches of a step, so sequences may be in any of them. A good choice lowers
the floor of the step: replicas even out only the ranks of a node, so no replication gets below the load of the largest
node, summed over cells. It also lets sequences start on the nodes of the experts that they use.

Packing fits sequences to a placement. If homes may still move, it then fits the placement to the sequences, and repeats
both while the cost falls. Lengths stay about as balanced as in the schedule that packing begins from (see `caps`).
Where a step would exceed its memory budget, a packing that needs less memory is better, whatever it costs.

S sequences, L layers, E experts, N nodes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.packing.caps import Caps, caps_of, most_tokens
from relibra.planning.packing.changes import Changes
from relibra.planning.packing.judge import Judge, Judged, group_loads, judge_of
from relibra.planning.packing.length_balance import length_balanced, schedule_of
from relibra.planning.packing.search import find_places
from relibra.planning.packing.used_homes import used_homes
from relibra.planning.schedule import Packing, PackingRules, Schedule
from relibra.planning.traffic import MAX_PRICE

_GIB = 2**30
_NUM_GATHERINGS = 3
"""How often experts follow sequences and sequences follow experts."""
_LEAST_PRICE = 4
"""The price of a copy where dispatch is free, in units of 2**-10 tokens: of two packings with equal loads, the one with
fewer copies between nodes is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effort:
    """How long packing may search."""

    max_work: int
    """The most numbers that one search compares: changes tried, times the numbers compared for each."""
    max_turns: int
    """How often sequences are fitted to a placement at most, where homes may move."""


_OFFLINE = _Effort(max_work=500_000_000, max_turns=6)
_WAITED_FOR = _Effort(max_work=40_000_000, max_turns=1)


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

    Packing begins from a schedule that balances lengths alone, and takes its time. By the `Judge`, the packing never
    costs more than that schedule.

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
    length_S = np.asarray(length_S, dtype=np.int64)
    judge = judge_of(counts_SLE, length_S, start, model, cluster, params, previous_home_LE)
    needed = most_tokens(start, length_S, cluster)
    budget = needed if token_budget is None else token_budget
    last_resort = start if needed <= budget else None
    balanced = length_balanced(length_S, start.num_micro_batches, cluster, budget, last_resort)
    settled_LE = judge.previous_LE if judge.params.homes_stay else None
    return _improve(balanced, length_S, judge, settled_LE, PackingRules(token_budget=budget), _OFFLINE)


def repack(
    counts_SLE: NDArray[np.integer],
    length_S: NDArray[np.int64],
    start: Schedule,
    model: Model,
    cluster: Cluster,
    params: PlanParams | None = None,
    previous_home_LE: NDArray[np.integer] | None = None,
    rules: PackingRules = PackingRules(),  # noqa: B008
) -> tuple[Packing, str]:
    """Improve a schedule while its driver waits; return the packing and why.

    By the `Judge`, the packing never costs more than `start`. Rows keep their numbers of sequences, and only the ranks
    that `start` uses get sequences. Lengths stay about as balanced as in `start` (see `SLACK`). Placements take most of
    the time, so sequences are fitted to the current one; the plan that follows may move experts as ever. Before the
    first plan of a job there is none that suits any load. Then homes follow the sequences too, because a first
    placement lasts. Equal arguments give the same packing on any host (S8).

    Args:
        counts_SLE: token copies that each sequence routes to every expert.
        length_S: tokens of every sequence, for budget and attention.
        start: the schedule to improve.
        model: the MoE layers.
        cluster: the EP groups.
        params: how to plan; defaults to `PlanParams()`.
        previous_home_LE: the current placement; None before the first plan.
        rules: what must stay as it is in `start`.

    Raises:
        InvalidInput: `start` exceeds the budget, or the arguments contradict each other.
        InvalidPlan: `previous_home_LE` is not a placement.
    """
    length_S = np.asarray(length_S, dtype=np.int64)
    judge = judge_of(counts_SLE, length_S, start, model, cluster, params, previous_home_LE)
    needed = most_tokens(start, length_S, cluster)
    if rules.token_budget is not None and needed > rules.token_budget:
        raise InvalidInput.of(
            "token_budget", expected=f"at least the {needed} tokens that start needs", got=rules.token_budget
        )
    is_settled = previous_home_LE is not None or judge.params.homes_stay
    settled_LE = judge.previous_LE if is_settled else None
    return _improve(start, length_S, replace(judge, is_draft=True), settled_LE, rules, _WAITED_FOR)


def _improve(
    start: Schedule,
    length_S: NDArray[np.int64],
    judge: Judge,
    settled_LE: NDArray[np.int32] | None,
    rules: PackingRules,
    effort: _Effort,
) -> tuple[Packing, str]:
    """Fit the sequences of a schedule to the settled placement; if there is none, also placements to sequences."""
    size_S2 = np.stack([length_S, length_S**2], axis=1)
    price = judge.price_under(start)
    # Prices make first placements costly, so searches leave them time.
    max_work = effort.max_work // 2 if price and settled_LE is None else effort.max_work
    before = judge.judge(start, settled_LE)
    caps = caps_of(
        start,
        size_S2,
        judge.cluster,
        rules.token_budget,
        judge.most_copies(before),
        lacks_memory=before.excess_bytes > 0,
    )
    search = _Search(
        judge=judge,
        size_S2=size_S2,
        caps=caps,
        changes=Changes.under(rules, start, max_work),
        num_micro_batches=start.num_micro_batches,
        price=max(price, _LEAST_PRICE),
    )
    best = search.fit(before)
    if settled_LE is None:
        begin = search.gathered(start) if price else search.evened(before)
        found = (best, judge.judge(best.packing.schedule), judge.judge(begin))
        starts = found[1:] if effort is _OFFLINE else (min(found, key=_cost_of),)
        best = min((best, *(search.fit_in_turns(each, effort.max_turns) for each in starts)), key=_cost_of)
    return best.packing, _reason(before, best, judge, counts_time=price > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for better places of sequences, within caps."""

    judge: Judge
    size_S2: NDArray[np.int64]
    caps: Caps
    changes: Changes
    num_micro_batches: int
    price: int
    """The price of a copy at the busiest group, in units of 2**-10 tokens."""

    def fit(self, start: Judged, turn: int = 0) -> Judged:
        """Fit sequences to a placement, which stays. Every turn tries other changes."""
        home_LE = start.packing.home_LE
        schedule = self._with_places_for(start.packing.schedule, self.judge.load_SLP(home_LE), self.price, turn)
        # If costs are equal and dispatch is free, the later schedule has fewer copies between nodes.
        return min((self.judge.judge(schedule, home_LE), start), key=_cost_of)

    def fit_in_turns(self, start: Judged, max_turns: int) -> Judged:
        """Fit sequences to a placement, and placements to sequences, in turns."""
        best = self.fit(start)
        for turn in range(1, max_turns):
            best = min((best, self.fit(self.judge.judge(best.packing.schedule), turn)), key=_cost_of)
        return best

    def evened(self, start: Judged) -> Schedule:
        """Make the loads of all rows alike, whatever nodes experts are on."""
        load_SLR = group_loads(self.judge.counts_SLE, start.packing.home_LE, self.judge.cluster.num_ranks)
        return self._with_places_for(start.packing.schedule, load_SLR, 0)

    def gathered(self, start: Schedule) -> Schedule:
        """Let sequences that use the same experts start on the same node, wherever these experts are."""
        judge, schedule = self.judge, start
        quick = replace(self, changes=replace(self.changes, max_work=self.changes.max_work // 4))
        for _ in range(_NUM_GATHERINGS):
            node_S = schedule.source_rank_S // judge.cluster.gpus_per_node
            used_NLE = np.stack(
                [judge.counts_SLE[node_S == node].sum(axis=0) for node in range(judge.cluster.num_nodes)]
            )
            schedule = quick._with_places_for(schedule, judge.load_SLP(used_homes(used_NLE, judge.cluster)), MAX_PRICE)
        return schedule

    def _with_places_for(self, start: Schedule, load_SLP: NDArray[np.int64], price: int, turn: int = 0) -> Schedule:
        cluster, seed = self.judge.cluster, self.judge.params.seed + turn
        cell_S = start.row_S.astype(np.int64) * cluster.num_ranks + start.source_rank_S
        cell_S = find_places(load_SLP, self.size_S2, cell_S, price, cluster, self.caps, self.changes, seed)
        return schedule_of(cell_S, self.num_micro_batches, cluster)


def _cost_of(judged: Judged) -> tuple[int, int]:
    return judged.excess_bytes, judged.cost


def _reason(before: Judged, after: Judged, judge: Judge, *, counts_time: bool) -> str:
    """Say what packing gains."""
    cluster, num_copies = judge.cluster, max(int(judge.counts_SLE.sum(dtype=np.int64)), 1)
    groups = "nodes" if judge.num_groups == cluster.num_nodes else "ranks"
    what = f"modelled time of experts and dispatch at {groups}" if counts_time else f"floor of {groups}"
    cost, lower_cost = (judged.cost * judge.num_groups / num_copies for judged in (before, after))
    stays, more_stays = (judge.num_local(judged.packing) / num_copies for judged in (before, after))
    told = (
        f"packing brings the {what} from {cost:.4f} to {lower_cost:.4f}, and the share of tokens that stay on their "
        f"node from {stays:.1%} to {more_stays:.1%}"
    )
    if before.excess_bytes:
        told += (
            f", and the least memory of expert activations from {before.peak_bytes / _GIB:.2f} to "
            f"{after.peak_bytes / _GIB:.2f} GiB of a budget of {after.budget_bytes / _GIB:.2f}"
        )
    if cluster.num_nodes == 1:
        told += "; with one node, replicas reach any balance that packing could reach"
    return told
