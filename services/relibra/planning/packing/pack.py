"""Pack: choose the micro-batch and the source rank of every sequence, under a token budget.

Gradient accumulation sums over all micro-batches of a step, so sequences may be in any of them. A good choice lowers
the floor of the step. Replicas even out only the ranks of a node, so no replication gets below the load of the largest
node, summed over cells; and if rows differ in the experts they use, no placement suits them all.

    length-balanced schedule -> rows made alike -> reorder -> rows fitted to that placement -> source ranks

Where dispatch has a price, rows and source ranks are then fitted to the placement by the time of experts and dispatch,
the placement to them, and so on while the time falls. So sequences start on the nodes of the experts that they use, and
experts move to the nodes of the sequences that use them.

Lengths stay balanced: `caps` allow little above the length-balanced schedule. RoutePack (2026) places experts by the
totals of the batch and packs for that placement. Making rows alike first gets further: the placement then suits all
rows, and packing for it has less left to repair.

S sequences, M rows, L layers, E experts, R EP ranks, N nodes, P groups of ranks. An axis named 2 is (tokens, attention
work).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.packing.caps import caps_of, sizes_MR, with_slack
from relibra.planning.packing.changes import Changes
from relibra.planning.packing.judge import Judged, judge_of
from relibra.planning.packing.length_balance import length_balanced
from relibra.planning.packing.rows import Caps
from relibra.planning.packing.search import Search, cost_of, reason
from relibra.planning.schedule import Packing, Schedule

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
    length_S = np.asarray(length_S, dtype=np.int64)
    judge = judge_of(counts_SLE, length_S, start, model, cluster, params, previous_home_LE)
    if token_budget is None:
        token_budget = int(sizes_MR(start, length_S[:, None], cluster).max())
    size_S2 = np.stack([length_S, length_S**2], axis=1)
    fits = sizes_MR(start, length_S[:, None], cluster).max() <= token_budget
    balanced = length_balanced(length_S, start.num_micro_batches, cluster, token_budget, start if fits else None)
    caps = caps_of(balanced, size_S2, cluster, token_budget)
    search = Search(
        judge=judge,
        size_S2=size_S2,
        caps=caps,
        changes=Changes.all_of(cluster),
        num_micro_batches=start.num_micro_batches,
    )
    schedules = [balanced]
    if _keeps(start, balanced, size_S2, cluster, caps, token_budget):
        schedules.append(start)
    even = search.with_even_rows(balanced) if len(caps.node_M) > 1 else balanced
    price = judge.price_under(balanced)
    chosen = _by_time(search, schedules, even, price) if price else _by_tokens(search, schedules, even)
    return chosen.packing, reason(judge.judge(balanced), chosen, judge, bool(price))


def _by_tokens(search: Search, schedules: Sequence[Schedule], even: Schedule) -> Judged:
    """Pack where dispatch is free: fit even rows to their placement, then let sequences start near their experts.

    Args:
        search: the searches.
        schedules: schedules that the packing must not be worse than.
        even: a schedule whose rows have like loads.
    """
    judge = search.judge
    home_LE = judge.judge(even).packing.home_LE
    fitted = judge.judge(search.with_lower_floor(even, home_LE), home_LE)
    chosen = min((fitted, *map(judge.judge, schedules)), key=cost_of)
    schedule = search.kept_local(chosen.packing.schedule, chosen.packing.home_LE)
    return replace(chosen, packing=replace(chosen.packing, schedule=schedule))


def _by_time(search: Search, schedules: Sequence[Schedule], even: Schedule, price: int) -> Judged:
    """Pack where dispatch has a price. Args as those of `_by_tokens`.

    Places and homes are fitted to each other in turns, so where they end depends on where they begin. From sources
    that have nothing in common they may find no locality, and from sequences that started near their experts they
    may keep too much of it. Both are tried.
    """
    local = _by_tokens(search.with_free_dispatch, schedules, even).packing.schedule
    begins = [search.judge.judge(schedule) for schedule in (*schedules, even)]
    begins = [min(begins, key=cost_of), search.judge.judge(local)]
    return min((_fitted_by_time(search, begin, price) for begin in begins), key=cost_of)


def _fitted_by_time(search: Search, start: Judged, price: int) -> Judged:
    """Fit rows and source ranks to the placement, then the placement to them, as long as that lowers the cost."""
    best, judge = start, search.judge
    for _ in range(_MAX_ROUNDS):
        home_LE = best.packing.home_LE
        schedule = search.fitted_by_time(best.packing.schedule, home_LE, price)
        candidate = min(judge.judge(schedule, home_LE), judge.judge(schedule), key=cost_of)
        if candidate.cost >= best.cost:
            break
        best = candidate
    return best


def _keeps(
    start: Schedule, balanced: Schedule, size_S2: NDArray[np.int64], cluster: Cluster, caps: Caps, token_budget: int
) -> bool:
    """Return whether `start` keeps the budget, and lengths about as balanced as in the length-balanced schedule."""
    size_MR2, balanced_MR2 = (sizes_MR(schedule, size_S2, cluster) for schedule in (start, balanced))
    tokens_M = size_MR2[..., 0].sum(axis=1)
    return bool(
        size_MR2[..., 0].max() <= token_budget
        and (size_MR2.max(axis=1).sum(axis=0) <= with_slack(balanced_MR2.max(axis=1).sum(axis=0))).all()
        and tokens_M.min() >= caps.row_2[0]
        and tokens_M.max() <= caps.row_2[1]
    )
