"""The exact optimum of a cell by mixed-integer programming: the oracle of the tests.

Per node, with `z[e, r]` = 1 where rank r holds a replica of e and `q[e, r]` the tokens of e that it computes:

    minimise T
    sum_r q[e, r]  = load[e]                            every token is computed
    q[e, r]       <= load[e] * (r is home of e, or z)   only where there is a copy
    q[e, r]       >= min_tokens * z[e, r]               by replicas
    sum_e z[e, r] <= slots
    sum_e q[e, r] <= T

Only z and T need to be integers: with z fixed this is a transportation problem with integer bounds, so if it has a
solution at an integer T, it has one with integer quotas. HiGHS works in floats, so the T that its z allows is computed
again in integers.

X experts of a node, G ranks of a node, C possible copies, Z of them replicas, S sets of ranks, M rows, L layers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_array, coo_array, diags_array

from relibra.errors import Unsupported
from relibra.planning.load import StepLoad
from relibra.planning.plan import Plan
from relibra.planning.prices import price_replicas

_MAX_RANKS = 16
_TIME_LIMIT_S = 10.0
_TOLERANCE = 1e-4
"""Precision of HiGHS, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLimit:
    """Bounds on the tokens of the slowest rank in the best plan."""

    at_least: int
    """No plan is below this."""
    at_most: int
    """A plan with this many exists."""

    @property
    def is_proven(self) -> bool:
        """Whether the optimum is known. It is, unless time or floating-point precision ran out."""
        return self.at_least == self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactGap:
    """How far the cells of a plan are above their optimum; 0.0 is optimal.

    Where the optimum of a cell is not proven, its gap is measured to the proven lower bound, so it may be too large.
    """

    mean: float
    worst: float
    num_cells: int
    num_proven: int
    """Cells whose gap is exact."""


def exact_limit(
    load_X: NDArray[np.integer],
    home_X: NDArray[np.integer],
    num_ranks: int,
    slots: int,
    min_tokens: int = 1,
    time_limit_s: float = _TIME_LIMIT_S,
) -> ExactLimit:
    """Solve one node of one cell.

    Args:
        load_X: tokens of the node's experts.
        home_X: the home of each expert, as a rank of the node from 0.
        num_ranks: G, at most 16.
        slots: redundant slots per rank.
        min_tokens: the fewest tokens a replica may have.
        time_limit_s: time for the search. The result is correct in any case, and less exact if time runs out.

    Raises:
        Unsupported: the node is too large.
    """
    if num_ranks > _MAX_RANKS:
        raise Unsupported(f"the exact optimum is for nodes of at most {_MAX_RANKS} ranks, not {num_ranks}")
    tokens_X: NDArray[np.int64] = load_X.astype(np.int64)
    rank_X: NDArray[np.int64] = home_X.astype(np.int64)
    held_G = np.zeros(num_ranks, dtype=np.int64)
    np.add.at(held_G, rank_X, tokens_X)
    least, most = -(-int(held_G.sum()) // num_ranks), int(held_G.max())
    is_replica_XG = (np.arange(num_ranks) != rank_X[:, None]) & (tokens_X >= max(min_tokens, 1))[:, None]
    expert_Z, rank_Z = np.nonzero(is_replica_XG)
    if not slots or not len(expert_Z) or least == most:
        return ExactLimit(at_least=most, at_most=most)
    proven, is_held_Z = _search(tokens_X, rank_X, expert_Z, rank_Z, (num_ranks, most), slots, min_tokens, time_limit_s)
    fewest = most
    if is_held_Z is not None:
        expert_Z, rank_Z = expert_Z[is_held_Z], rank_Z[is_held_Z]
        fewest = min(fewest, _slowest_rank(tokens_X, rank_X, expert_Z, rank_Z, num_ranks, min_tokens))
    return ExactLimit(at_least=min(max(least, proven), fewest), at_most=fewest)


def exact_gap(plan: Plan, load: StepLoad, time_limit_s: float = _TIME_LIMIT_S) -> ExactGap:
    """Compare every cell of a plan with the optimum of its placement and slots.

    The gap includes balance that the plan gave up because replicas would have cost more.

    Args:
        plan: a plan that passes `check_plan` with this load.
        load: the load it was planned for.
        time_limit_s: time for the search on each node of each cell.

    Raises:
        Unsupported: a node is too large.
    """
    cluster, load_MLE = plan.cluster, load.load_MLE
    planned_ML = plan.rank_loads_MLR.max(axis=-1)
    min_tokens = price_replicas(plan.params, load_MLE, plan.model, cluster).least
    used_Y = plan.replica_tokens_Y[plan.replica_tokens_Y > 0]
    min_tokens = min([min_tokens, *used_Y])  # the optimum may do what the plan does
    best_ML = plan.lower_bound_ML.astype(np.int64)
    is_proven_ML = planned_ML == best_ML
    for row, layer in np.argwhere(~is_proven_ML):  # a cell at its bound is optimal
        node_E, rank_E = np.divmod(plan.home_rank_LE[layer], cluster.gpus_per_node)
        limits = [
            exact_limit(
                load_MLE[row, layer, node_E == node],
                rank_E[node_E == node],
                cluster.gpus_per_node,
                cluster.redundant_slots,
                min_tokens,
                time_limit_s,
            )
            for node in range(cluster.num_nodes)
        ]
        best_ML[row, layer] = max(limit.at_least for limit in limits)
        is_proven_ML[row, layer] = best_ML[row, layer] in (
            planned_ML[row, layer],
            max(limit.at_most for limit in limits),
        )
    gap_ML = planned_ML / np.maximum(best_ML, 1) - (best_ML > 0)
    return ExactGap(
        mean=float(gap_ML.mean()),
        worst=float(gap_ML.max()),
        num_cells=gap_ML.size,
        num_proven=int(is_proven_ML.sum()),
    )


def _search(
    load_X: NDArray[np.int64],
    home_X: NDArray[np.int64],
    expert_Z: NDArray[np.int64],
    rank_Z: NDArray[np.int64],
    limits: tuple[int, int],
    slots: int,
    min_tokens: int,
    time_limit_s: float,
) -> tuple[int, NDArray[np.bool_] | None]:
    """Run HiGHS; return the tokens that no plan is below, and which replicas the best plan found has, if any."""
    (num_ranks, most), num_experts, num_replicas = limits, len(load_X), len(expert_Z)
    # Columns: tokens of every copy, homes first; then z of every replica; then T.
    expert_C, rank_C = np.concatenate([np.arange(num_experts), expert_Z]), np.concatenate([home_X, rank_Z])
    index_C, index_Z = np.arange(num_experts + num_replicas), np.arange(num_replicas)
    tokens_XC = coo_array((np.ones(len(index_C)), (expert_C, index_C)))
    tokens_GC = coo_array((np.ones(len(index_C)), (rank_C, index_C)), shape=(num_ranks, len(index_C)))
    tokens_ZC = coo_array((np.ones(num_replicas), (index_Z, num_experts + index_Z)), shape=(num_replicas, len(index_C)))
    held_GZ = coo_array((np.ones(num_replicas), (rank_Z, index_Z)), shape=(num_ranks, num_replicas))
    one_G1 = coo_array(np.ones((num_ranks, 1)))
    most_Z = np.minimum(load_X[expert_Z], most)
    matrix = block_array(
        [
            [tokens_XC, None, coo_array((num_experts, 1))],
            [tokens_GC, None, -one_G1],
            [None, held_GZ, None],
            [tokens_ZC, -diags_array(most_Z.astype(float)), None],
            [tokens_ZC, -diags_array(np.full(num_replicas, float(min_tokens))), None],
        ],
        format="csr",
    )
    lower = [load_X, np.full(2 * num_ranks + num_replicas, -np.inf), np.zeros(num_replicas)]
    upper = [load_X, np.zeros(num_ranks), np.full(num_ranks, slots), np.zeros(num_replicas)]
    result = milp(
        c=np.concatenate([np.zeros(len(index_C) + num_replicas), [1.0]]),
        constraints=LinearConstraint(
            matrix, np.concatenate(lower), np.concatenate([*upper, np.full(num_replicas, np.inf)])
        ),
        integrality=np.concatenate([np.zeros(len(index_C)), np.ones(num_replicas + 1)]),
        bounds=Bounds(0, np.concatenate([load_X[expert_C], np.ones(num_replicas), [most]])),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    proven = 0 if result.mip_dual_bound is None else int(np.ceil(result.mip_dual_bound - _TOLERANCE))
    if result.x is None:
        return proven, None
    return proven, result.x[len(index_C) : -1] > 0.5


def _slowest_rank(
    load_X: NDArray[np.int64],
    home_X: NDArray[np.int64],
    expert_Z: NDArray[np.int64],
    rank_Z: NDArray[np.int64],
    num_ranks: int,
    min_tokens: int,
) -> int:
    """Return the tokens of the slowest rank if these replicas exist and tokens are spread over copies optimally.

    By Hoffman's circulation theorem this is the largest mean over sets of ranks. The mean of a set counts the tokens of
    experts without a copy outside the set, and the least tokens that the set's replicas of other experts must have.
    """
    copies_X = 1 << home_X
    np.bitwise_or.at(copies_X, expert_Z, 1 << rank_Z)
    free_X = load_X - min_tokens * np.bincount(expert_Z, minlength=len(load_X))
    if (free_X < 0).any():
        return int(load_X.sum())
    held_G = np.bincount(rank_Z, minlength=num_ranks)
    set_S = np.arange(1, 1 << num_ranks)
    in_SG = (set_S[:, None] >> np.arange(num_ranks) & 1).astype(np.int64)
    stuck_SX = (copies_X & ~set_S[:, None]) == 0
    tokens_S = stuck_SX @ free_X + min_tokens * (in_SG @ held_G)
    return int((-(-tokens_S // in_SG.sum(axis=1))).max())
