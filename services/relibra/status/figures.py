"""The numbers of a plan that pages and JSON show.

*Before* is the identity placement without replicas, *after* is the plan. The *floor* of a cell is the mean rank load of
the fullest node, because replicas cannot leave a node.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, Q quotas, C cells.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relibra.errors import NotFound
from relibra.planning import Cluster, Plan
from relibra.planning.load import rank_loads
from relibra.planning.summary import PlanTotals


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """A plan and the loads that it causes. Each array is computed on first access, which takes milliseconds."""

    plan: Plan

    @cached_property
    def before_MLR(self) -> NDArray[np.int64]:
        """The tokens of every rank under the identity placement."""
        plan = self.plan
        row_Q, layer_Q, expert_Q, _ = plan.quota_index_Q4.T
        identity_Q4 = np.stack(
            [row_Q, layer_Q, expert_Q, expert_Q // plan.cluster.experts_per_rank(plan.model)], axis=1
        )
        return rank_loads(
            identity_Q4, plan.quota_tokens_Q, plan.num_rows, plan.model.num_layers, plan.cluster.num_ranks
        )

    @property
    def after_MLR(self) -> NDArray[np.int64]:
        """The tokens of every rank as planned."""
        return self.plan.rank_loads_MLR

    @cached_property
    def _first_quota_C(self) -> NDArray[np.int64]:
        """The index of the first quota of each cell, then the number of quotas; int64 `[M * L + 1]`."""
        row_Q, layer_Q, _, _ = self.plan.quota_index_Q4.T
        num_layers = self.plan.model.num_layers
        cell_Q = row_Q.astype(np.int64) * num_layers + layer_Q
        return np.searchsorted(cell_Q, np.arange(self.plan.num_rows * num_layers + 1))

    @cached_property
    def num_replicas_ML(self) -> NDArray[np.int64]:
        """The number of replicas in every cell."""
        running_Q = np.concatenate([[0], np.cumsum(self.plan.is_replica_Q)])
        num_replicas_ML: NDArray[np.int64] = np.diff(running_Q[self._first_quota_C]).reshape(
            self.plan.num_rows, self.plan.model.num_layers
        )
        return num_replicas_ML

    @property
    def floor_ML(self) -> NDArray[np.float64]:
        """The mean rank load of the fullest node under the plan's placement, in tokens."""
        fullest_ML = node_loads(self.after_MLR, self.plan.cluster).max(axis=-1)
        floor_ML: NDArray[np.float64] = fullest_ML / self.plan.cluster.gpus_per_node
        return floor_ML

    def worst_cells(self, limit: int) -> list[tuple[int, int, float, float, float]]:
        """Return the cells that lose most tokens to waiting, the worst first.

        Each entry is (row, layer, slowest rank before, slowest rank after, lower bound), loads over the mean rank.
        """
        mean_ML, slowest_ML = self.after_MLR.mean(axis=-1), self.after_MLR.max(axis=-1)
        order_C = np.argsort((mean_ML - slowest_ML).ravel(), kind="stable")[:limit]
        worst = []
        for row, layer in zip(*np.unravel_index(order_C, mean_ML.shape), strict=True):
            mean = float(mean_ML[row, layer]) or 1.0
            loads = (self.before_MLR[row, layer].max(), slowest_ML[row, layer], self.plan.lower_bound_ML[row, layer])
            before, after, bound = (float(load) / mean for load in loads)
            worst.append((int(row), int(layer), before, after, bound))
        return worst

    def quotas_of(self, row: int, layer: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return (expert, rank) `[Q, 2]` and tokens `[Q]` of the quotas of one cell.

        Raises:
            NotFound: the plan has no such cell.
        """
        check_index("row", row, self.plan.num_rows)
        check_index("layer", layer, self.plan.model.num_layers)
        cell = row * self.plan.model.num_layers + layer
        quotas = slice(*self._first_quota_C[cell : cell + 2])
        return self.plan.quota_index_Q4[quotas, 2:], self.plan.quota_tokens_Q[quotas]


def slowest_ranks(totals: PlanTotals) -> list[tuple[int, float, int, float]]:
    """Return for each layer (slowest rank, its load over the mean rank) without balancing, then the same as planned."""
    slowest = []
    for before_R, after_R in zip(totals.before_LR, totals.after_LR, strict=True):
        mean = float(after_R.mean()) or 1.0
        before, after = int(before_R.argmax()), int(after_R.argmax())
        slowest.append((before, float(before_R[before]) / mean, after, float(after_R[after]) / mean))
    return slowest


def node_loads(loads_xR: NDArray[np.integer], cluster: Cluster) -> NDArray[np.int64]:
    """Sum the last axis over the ranks of each node, `[..., N]`."""
    shape = (*loads_xR.shape[:-1], cluster.num_nodes, cluster.gpus_per_node)
    loads_xN: NDArray[np.int64] = loads_xR.reshape(shape).sum(axis=-1, dtype=np.int64)
    return loads_xN


def check_index(name: str, index: int, count: int) -> None:
    """Refuse an index that is out of range.

    Raises:
        NotFound: the index is out of range; the message names the range.
    """
    if not 0 <= index < count:
        raise NotFound(f"there is no {name} {index}; there are 0 to {count - 1}")
