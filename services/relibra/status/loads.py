"""Loads as pages and JSON show them: heat maps and cells.

M rows (EP groups x micro-batches), L MoE layers, E experts, R EP ranks, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.status.figures import PlanFigures, check_index, node_loads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Token copies by layer and rank, for one row or summed over all rows."""

    row: int | None
    """ep_group * num_micro_batches + micro_batch; None for the sum of all rows."""
    num_rows: int
    gpus_per_node: int
    mean_tokens: list[float]
    """`[layer]`: mean load of a rank, the ideal."""
    floor_tokens: list[float]
    """`[layer]`: mean rank load of the fullest node, because replicas cannot leave a node."""
    before_tokens: list[list[int]]
    """`[layer][rank]` without balancing."""
    after_tokens: list[list[int]]
    """`[layer][rank]` as planned."""

    @classmethod
    def of(cls, figures: PlanFigures, row: int | None) -> "HeatMap":
        """Return the view of one row, or of the sum of all rows.

        Raises:
            NotFound: the plan has no such row.
        """
        if row is not None:
            check_index("row", row, figures.plan.num_rows)
        rows = slice(None) if row is None else slice(row, row + 1)
        after_LR = figures.after_MLR[rows].sum(axis=0)
        return cls(
            row=row,
            num_rows=figures.plan.num_rows,
            gpus_per_node=figures.plan.cluster.gpus_per_node,
            mean_tokens=after_LR.mean(axis=-1).round(1).tolist(),
            floor_tokens=figures.floor_ML[rows].sum(axis=0).round(1).tolist(),
            before_tokens=figures.before_MLR[rows].sum(axis=0).tolist(),
            after_tokens=after_LR.tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """The load of one rank in a cell."""

    rank: int
    node: int
    before_tokens: int
    """Without balancing."""
    after_tokens: int
    """As planned: tokens of home experts and of replicas."""
    home_tokens: int
    """Tokens of experts whose home is this rank."""
    replica_tokens: int
    """Tokens of replicas, whose home is another rank of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaQuota:
    """The quota of a replica."""

    rank: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The load of one expert in a cell."""

    expert: int
    home_rank: int
    load_tokens: int
    home_tokens: int
    """Quota of the home rank."""
    replicas: list[ReplicaQuota]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One micro-batch and layer of one EP group in full."""

    row: int
    ep_group: int
    micro_batch: int
    layer: int
    mean_tokens: float
    """Mean load of a rank, the ideal."""
    floor_tokens: float
    """Mean rank load of the fullest node under this placement."""
    slowest_before_tokens: int
    """Load of the slowest rank without balancing."""
    slowest_after_tokens: int
    """Load of the slowest rank as planned."""
    lower_bound_tokens: float
    """Lower bound of the slowest rank for any plan with this placement and these slots."""
    gap: float
    """Slowest rank as planned over the lower bound, minus 1."""
    ranks: list[RankLoad]
    experts: list[ExpertLoad]
    """Experts with load, largest load first."""

    @classmethod
    def of(cls, figures: PlanFigures, row: int, layer: int) -> "Cell":
        """Return the view of a cell.

        Raises:
            NotFound: the plan has no such cell.
        """
        plan, cluster = figures.plan, figures.plan.cluster
        index_Q2, tokens_Q = figures.quotas_of(row, layer)
        home_Q = plan.home_rank_LE[layer, index_Q2[:, 0]]
        is_home_Q = home_Q == index_Q2[:, 1]
        # Computed from the quotas of this cell alone, so that the loads of all cells need not be computed.
        before_R = np.bincount(
            index_Q2[:, 0] // cluster.experts_per_rank(plan.model), weights=tokens_Q, minlength=cluster.num_ranks
        )
        after_R = np.bincount(index_Q2[:, 1], weights=tokens_Q, minlength=cluster.num_ranks)
        home_R = np.bincount(index_Q2[is_home_Q, 1], weights=tokens_Q[is_home_Q], minlength=cluster.num_ranks)
        group, micro_batch = divmod(row, plan.schedule.num_micro_batches)
        slowest, bound = int(after_R.max()), float(plan.lower_bound_ML[row, layer])
        return cls(
            row=row,
            ep_group=group,
            micro_batch=micro_batch,
            layer=layer,
            mean_tokens=round(float(after_R.mean()), 1),
            floor_tokens=round(float(node_loads(after_R, cluster).max()) / cluster.gpus_per_node, 1),
            slowest_before_tokens=int(before_R.max()),
            slowest_after_tokens=slowest,
            lower_bound_tokens=round(bound, 1),
            gap=slowest / bound - 1 if bound else 0.0,
            ranks=[
                RankLoad(
                    rank=rank,
                    node=rank // cluster.gpus_per_node,
                    before_tokens=int(before_R[rank]),
                    after_tokens=int(after_R[rank]),
                    home_tokens=int(home_R[rank]),
                    replica_tokens=int(after_R[rank] - home_R[rank]),
                )
                for rank in range(cluster.num_ranks)
            ],
            experts=_experts(index_Q2, tokens_Q, is_home_Q, plan.home_rank_LE[layer]),
        )


def _experts(
    index_Q2: NDArray[np.int32], tokens_Q: NDArray[np.int64], is_home_Q: NDArray[np.bool_], home_E: NDArray[np.int32]
) -> list[ExpertLoad]:
    quotas: dict[int, list[tuple[int, int, bool]]] = {}
    for (expert, rank), tokens, is_home in zip(index_Q2.tolist(), tokens_Q.tolist(), is_home_Q.tolist(), strict=True):
        quotas.setdefault(expert, []).append((rank, tokens, is_home))
    experts = [
        ExpertLoad(
            expert=expert,
            home_rank=int(home_E[expert]),
            load_tokens=sum(tokens for _, tokens, _ in of_expert),
            home_tokens=sum(tokens for _, tokens, is_home in of_expert if is_home),
            replicas=[ReplicaQuota(rank=rank, tokens=tokens) for rank, tokens, is_home in of_expert if not is_home],
        )
        for expert, of_expert in quotas.items()
    ]
    return sorted(experts, key=lambda expert: -expert.load_tokens)
