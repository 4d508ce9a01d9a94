"""Repack: improve a schedule that a framework made, within rules, while its driver waits.

`pack` begins from a schedule of its own that balances lengths, and takes its time. Repacking begins from the given
schedule, changes only what the rules leave free, and tries less. Placements take most of the time, so sequences are
fitted to the current one; the plan that follows may move experts as ever. Before the first plan of a job there is none
that suits any load. Then three are made, one for the given schedule and two for better ones, because a first placement
lasts.

S sequences, L layers, E experts.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.packing.caps import caps_of, sizes_MR
from relibra.planning.packing.changes import Changes
from relibra.planning.packing.judge import Judged, judge_of
from relibra.planning.packing.search import Search, cost_of, reason
from relibra.planning.schedule import Freedom, Packing, PackingRules, Schedule

_MAX_WORK = 40_000_000
"""The most numbers that one search compares; half of it before the first plan, when there are two."""


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
    """Improve a schedule; return the packing and why. By the `Judge`, the packing never costs more than `start`.

    Rows keep their numbers of sequences, and only the ranks that `start` uses get sequences. Lengths stay about as
    balanced as in `start` (see `SLACK`). Equal arguments give the same packing on any host (S8).

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
    judge = replace(judge, is_draft=True)
    size_S2 = np.stack([length_S, length_S**2], axis=1)
    needed = int(sizes_MR(start, length_S[:, None], cluster).max())
    budget = needed if rules.token_budget is None else rules.token_budget
    if needed > budget:
        raise InvalidInput.of("token_budget", expected=f"at least the {needed} tokens that start needs", got=budget)
    price = judge.price_under(start)
    home_LE = None if previous_home_LE is None and not judge.params.homes_stay else judge.previous_LE
    num_searches = 2 if home_LE is None and price else 1
    search = Search(
        judge=judge,
        size_S2=size_S2,
        caps=caps_of(start, size_S2, cluster, budget),
        changes=Changes.under(rules, start, _MAX_WORK // num_searches),
        num_micro_batches=start.num_micro_batches,
    )
    before = judge.judge(start, home_LE)
    changes_rows = rules.freedom is Freedom.MICRO_BATCHES and start.num_rows(cluster) > 1
    best = _by_time(search, before, home_LE, price) if price else _by_tokens(search, before, home_LE, changes_rows)
    return best.packing, reason(before, best, judge, bool(price))


def _by_tokens(search: Search, before: Judged, home_LE: NDArray[np.int32] | None, changes_rows: bool) -> Judged:
    """Lower the floor where dispatch is free, then let sequences start near their experts."""
    judge, best = search.judge, before
    if changes_rows:
        even = judge.judge(search.with_even_rows(before.packing.schedule), home_LE)
        even_LE = even.packing.home_LE
        fitted = judge.judge(search.with_lower_floor(even.packing.schedule, even_LE), even_LE)
        best = min((before, even, fitted), key=cost_of)
    local = search.kept_local(best.packing.schedule, best.packing.home_LE)
    return replace(best, packing=replace(best.packing, schedule=local))


def _by_time(search: Search, before: Judged, home_LE: NDArray[np.int32] | None, price: int) -> Judged:
    """Lower the time of experts and dispatch.

    While experts have not settled yet, sequences that use the same ones may gather on any node, and homes follow them.
    """
    best = _fit(search, before, price)
    if home_LE is None:
        schedules = (best.packing.schedule, search.gather(before.packing.schedule))
        best = _fit(search, min((best, *map(search.judge.judge, schedules)), key=cost_of), price)
    return best


def _fit(search: Search, start: Judged, price: int) -> Judged:
    """Fit sequences to a placement, which stays."""
    home_LE = start.packing.home_LE
    candidate = search.judge.judge(search.fitted_by_time(start.packing.schedule, home_LE, price), home_LE)
    return min((start, candidate), key=cost_of)
