"""The replicas of one layer as an answer, and the choice that balances tokens alone.

M rows, E experts, R EP ranks, N nodes, X experts of a node (rank by rank), Y replicas.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.replicas.node_replicas import replicate_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReplicas:
    """The replicas of one layer, row by row: those of row m are lines `end_M[m - 1]` to `end_M[m]`."""

    limit_M: NDArray[np.int64]
    """Tokens of the slowest rank with these replicas."""
    cost_M: NDArray[np.int64]
    """`limit_M` plus what replicas cost, in tokens: those of the busiest rank, and that there are any. Where dispatch
    has a price, it is included."""
    end_M: NDArray[np.int64]
    index_Y2: NDArray[np.int32]
    """(expert, rank) of every replica."""
    tokens_Y: NDArray[np.int64]
    """Tokens of every replica."""
    crossing_Y: NDArray[np.int64] | None = None
    """The tokens of every replica that come from other nodes. None: it does not matter where they come from."""


@dataclass(frozen=True, slots=True)
class KnownReplicas:
    """The replicas of placements that were compared, so that those of the chosen one are not searched again."""

    _of_layer: dict[int, tuple[NDArray[np.int32], LayerReplicas]] = field(default_factory=dict)

    def keep(self, layer: int, home_E: NDArray[np.int32], replicas: LayerReplicas) -> None:
        """Keep the replicas of a layer under a placement; those that were kept for the layer before are dropped."""
        self._of_layer[layer] = home_E, replicas

    def of(self, layer: int, home_E: NDArray[np.int32]) -> LayerReplicas | None:
        """Return what was kept for the layer, or None if that was for another placement."""
        kept_E, replicas = self._of_layer.get(layer, (None, None))
        return replicas if kept_E is not None and np.array_equal(kept_E, home_E) else None


def balance_layer(
    load_ME: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster, least: int, of_busiest: int
) -> LayerReplicas:
    """Choose the replicas of one layer that balance its ranks.

    In every cell the slowest rank has at most the tokens it has without replicas. Nodes below the slowest one get only
    the replicas they need to stay below it. Balance that costs more than it is worth is left.

    Args:
        load_ME: tokens of every expert, or what else its ranks shall have equally much of.
        home_E: the placement.
        cluster: nodes, ranks and slots.
        least: the fewest tokens a replica may have.
        of_busiest: what each replica of the busiest rank costs, in tokens.
    """
    by_rank_NX = np.argsort(home_E, kind="stable").reshape(cluster.num_nodes, -1)
    limit_M, cost_M, end_M, index_Y2, tokens_Y = replicate_rows(
        np.ascontiguousarray(load_ME), by_rank_NX, cluster.gpus_per_node, cluster.redundant_slots, least, of_busiest
    )
    return LayerReplicas(
        limit_M=limit_M, cost_M=cost_M, end_M=end_M, index_Y2=index_Y2.copy(), tokens_Y=tokens_Y.copy()
    )


def worth_their_cell(
    replicas: LayerReplicas, load_ME: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster, of_cell: int
) -> LayerReplicas:
    """Return the replicas of those rows where they save more than `of_cell` tokens of the slowest rank."""
    if of_cell == 0:
        return replicas
    by_rank_RX = np.argsort(home_E, kind="stable").reshape(cluster.num_ranks, -1)
    at_home_M = load_ME[:, by_rank_RX].sum(axis=-1).max(axis=-1)
    num_M = np.diff(replicas.end_M, prepend=0)
    is_kept_M = (num_M > 0) & (at_home_M - replicas.cost_M > of_cell)
    is_kept_Y = np.repeat(is_kept_M, num_M)
    return LayerReplicas(
        limit_M=np.where(is_kept_M, replicas.limit_M, at_home_M),
        cost_M=np.where(is_kept_M, replicas.cost_M + of_cell, at_home_M),
        end_M=np.cumsum(np.where(is_kept_M, num_M, 0)),
        index_Y2=replicas.index_Y2[is_kept_Y],
        tokens_Y=replicas.tokens_Y[is_kept_Y],
    )
