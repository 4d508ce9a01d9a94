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
from relibra.planning.load import home_loads


@dataclass(frozen=True, kw_only=True)
class PlanFigures:
    """A plan and the loads that it causes. Each array is computed on first access, which takes milliseconds."""

    plan: Plan

    @cached_property
    def before_MLR(self) -> NDArray[np.int64]:
        """The tokens of every rank under the identity placement."""
        plan = self.plan
        return home_loads(plan.load_MLE, plan.cluster.identity_placement(plan.model), plan.cluster.num_ranks)

    @property
    def after_MLR(self) -> NDArray[np.int64]:
        """The tokens of every rank as planned."""
        return self.plan.rank_loads_MLR

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

    def slowest_ranks(self) -> list[tuple[int, float, int, float]]:
        """Return the slowest rank of each layer and its load over the mean rank, without balancing, then as planned."""
        slowest = []
        for before_R, after_R in zip(self.before_MLR.sum(axis=0), self.after_MLR.sum(axis=0), strict=True):
            mean = float(after_R.mean()) or 1.0
            before, after = int(before_R.argmax()), int(after_R.argmax())
            slowest.append((before, float(before_R[before]) / mean, after, float(after_R[after]) / mean))
        return slowest

    def most_replicated(self, limit: int) -> list[tuple[int, int, int, int, int]]:
        """Return (layer, expert, home rank, replicas, tokens) of the most replicated experts, over all rows."""
        plan = self.plan
        num_replicas_LE = np.zeros(plan.home_rank_LE.shape, dtype=np.int64)
        np.add.at(num_replicas_LE, tuple(plan.replica_index_Y4[:, 1:3].T), 1)
        columns = (plan.home_rank_LE, num_replicas_LE, plan.load_MLE.sum(axis=0))
        places = np.argsort(-num_replicas_LE, axis=None, kind="stable")[:limit].tolist()
        most = [divmod(place, plan.model.num_experts) for place in places if num_replicas_LE.flat[place]]
        return [(layer, expert, *(int(of_LE[layer, expert]) for of_LE in columns)) for layer, expert in most]

    def quotas_of(self, row: int, layer: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return (expert, rank) `[Q, 2]` and tokens `[Q]` of the quotas of one cell.

        Raises:
            NotFound: the plan has no such cell.
        """
        check_index("row", row, self.plan.num_rows)
        check_index("layer", layer, self.plan.model.num_layers)
        quotas = self.plan.quotas
        is_here_Q = (quotas.index_Q4[:, :2] == (row, layer)).all(axis=1)
        return quotas.index_Q4[is_here_Q, 2:], quotas.tokens_Q[is_here_Q]


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
