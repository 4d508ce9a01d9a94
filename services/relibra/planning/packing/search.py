"""The steps that packing is made of: each takes a schedule and returns a better one for a placement.

S sequences, L layers, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.planning.packing.by_time import fit_by_time
from relibra.planning.packing.changes import Changes
from relibra.planning.packing.judge import Judge, Judged
from relibra.planning.packing.length_balance import schedule_of
from relibra.planning.packing.rows import Caps, even_rows, lower_floor, mix_loads, num_proposals
from relibra.planning.packing.sources import keep_local
from relibra.planning.packing.used_homes import used_homes
from relibra.planning.schedule import Packing, Schedule

_NUM_GATHERINGS = 3
"""How often experts follow sequences and sequences follow experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The searches for better places of sequences, within caps."""

    judge: Judge
    size_S2: NDArray[np.int64]
    caps: Caps
    changes: Changes
    num_micro_batches: int

    @property
    def with_free_dispatch(self) -> "Search":
        """The same searches, which count tokens alone."""
        return replace(self, judge=self.judge.with_free_dispatch())

    def with_even_rows(self, start: Schedule) -> Schedule:
        """Make the expert loads of all rows alike."""
        return self._swap_rows(even_rows, mix_loads(self.judge.counts_SLE), start)

    def with_lower_floor(self, start: Schedule, home_LE: NDArray[np.int32]) -> Schedule:
        """Fit rows to a placement."""
        return self._swap_rows(lower_floor, self.judge.load_SLP(home_LE), start)

    def _swap_rows(self, swap: Callable[..., NDArray[np.int64]], loads: NDArray[Any], start: Schedule) -> Schedule:
        rank_M2, row_2, seed = self.caps.rank_M2, self.caps.row_2, self._seed % (1 << 63)
        num_tries = num_proposals(loads, self.changes.max_work)
        return self._schedule(
            swap(loads, self.size_S2, self._cells(start), self._num_ranks, rank_M2, row_2, seed, num_tries)
        )

    def kept_local(self, start: Schedule, home_LE: NDArray[np.int32]) -> Schedule:
        """Let sequences of a row start near their experts."""
        local_SN, size = self.judge.local_SN(home_LE), self.judge.cluster.gpus_per_node
        cell_S = keep_local(local_SN, self.size_S2, self._cells(start), size, self.caps, self.changes, self._seed)
        return self._schedule(cell_S)

    def gather(self, start: Schedule) -> Schedule:
        """Let sequences of a row that use the same experts start on the same node, wherever these experts are."""
        judge, schedule = self.judge, start
        for _ in range(_NUM_GATHERINGS):
            node_S = schedule.source_rank_S // judge.cluster.gpus_per_node
            used_NLE = np.stack(
                [judge.counts_SLE[node_S == node].sum(axis=0) for node in range(judge.cluster.num_nodes)]
            )
            schedule = self.kept_local(schedule, used_homes(used_NLE, judge.cluster))
        return schedule

    def fitted_by_time(self, start: Schedule, home_LE: NDArray[np.int32], price: int) -> Schedule:
        """Fit rows and source ranks to a placement, where a copy at the busiest group has this price."""
        load_SLP, cluster = self.judge.load_SLP(home_LE), self.judge.cluster
        cell_S = self._cells(start)
        return self._schedule(
            fit_by_time(load_SLP, self.size_S2, cell_S, price, cluster, self.caps, self.changes, self._seed)
        )

    @property
    def _seed(self) -> int:
        return self.judge.params.seed

    @property
    def _num_ranks(self) -> int:
        return self.judge.cluster.num_ranks

    def _cells(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the (row, source rank) of every sequence as one number, row * R + rank."""
        return schedule.row_S.astype(np.int64) * self._num_ranks + schedule.source_rank_S

    def _schedule(self, cell_S: NDArray[np.int64]) -> Schedule:
        return schedule_of(cell_S, self.num_micro_batches, self.judge.cluster)


def cost_of(judged: Judged) -> int:
    """Return what a schedule costs, to compare by."""
    return judged.cost


def reason(before: Judged, after: Judged, judge: Judge, counts_time: bool) -> str:
    """Say what packing gains."""
    cluster, num_copies = judge.cluster, max(int(judge.counts_SLE.sum(dtype=np.int64)), 1)
    groups = "nodes" if judge.num_groups == cluster.num_nodes else "ranks"
    what = f"modelled time of experts and dispatch at {groups}" if counts_time else f"floor of {groups}"
    cost, lower_cost = (judged.cost * judge.num_groups / num_copies for judged in (before, after))
    stays, more_stays = (_num_local(judged.packing, judge) / num_copies for judged in (before, after))
    told = (
        f"packing brings the {what} from {cost:.4f} to {lower_cost:.4f}, and the share of tokens that stay on their "
        f"node from {stays:.1%} to {more_stays:.1%}"
    )
    if cluster.num_nodes == 1:
        told += "; with one node, replicas reach any balance that packing could reach"
    return told


def _num_local(packing: Packing, judge: Judge) -> int:
    """Return the number of token copies whose expert has its home on the node of their source rank."""
    local_SN = judge.local_SN(packing.home_LE)
    node_S = packing.schedule.source_rank_S // judge.cluster.gpus_per_node
    return int(local_SN[np.arange(len(local_SN)), node_S].sum())
