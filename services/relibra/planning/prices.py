"""What replicas, moves and crossing nodes cost, in tokens: the cost model applied to one step.

Where a job brings no cost model of its own, the defaults are a guess about its hardware, so their effect is limited:
the least size of a replica is at most `_MAX_LOSS` of a rank's tokens, and what moves must gain lies between two bounds.

The network between nodes is the slow one, so a token copy that crosses nodes costs as much time as some number of
computed tokens (`CostModel.crossing_tokens`). The reorder weighs balance against traffic in these units. Where the cost
model does not say how large a token is, crossing is free and only balance counts.

M rows, L layers, N nodes, E experts, S sequences.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from relibra.planning.cost import CostModel
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad

MIN_GAIN = 0.005
"""The part of a layer's slowest-rank tokens that a reorder must save where the size of experts is not known. Reordering
all experts takes 1.4 % to 2.1 % of the time of a step (ReLibra), so this saving pays for about a third of them."""

_STEPS_OF_FIRST_PLACEMENT = 16
"""Steps within which the first reorder, away from the identity placement, must pay for itself. A placement lasts
longer, but the popularity of experts drifts."""

_GUESSED_GAIN = (0.001, 0.02)
"""Bounds on the gain asked for where the cost model is a guess, as parts of the layer's tokens."""
_MAX_LOSS = 0.01
"""Cap on the least size of a replica where the cost model is a guess, as a part of a rank's mean tokens in a cell."""

_UNIT_BITS = 10
"""Prices are whole multiples of 2**-10 tokens, so that they are the same on every host (S8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrice:
    """What replicas must be worth, in tokens."""

    least: int = 1
    """The fewest tokens a replica may have."""
    of_busiest: int = 0
    """What each replica of the busiest rank counts for, in tokens of the slowest rank. The busiest rank is the one that
    most replicas leave or enter. 0 where only balance counts."""
    of_cell: int = 0
    """What the replicas of a cell must save beside their own prices: the hosts' time for the cell, in tokens of the
    slowest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """How many tokens of its slowest ranks a layer must save in a step before experts move."""

    tokens_per_move: float = 0.0
    """What moving one expert must save."""
    least: float = MIN_GAIN
    """The part of the layer's tokens that must be saved however few experts move."""
    most: float = MIN_GAIN
    """The part of the layer's tokens that is enough however many experts move."""

    def of_first_placement(self) -> "Hysteresis":
        """Return the hysteresis for a layer that was never reordered: its moves pay off over several steps."""
        return replace(self, tokens_per_move=self.tokens_per_move / _STEPS_OF_FIRST_PLACEMENT)

    def net_gain(self, tokens: int, proposed: int, num_moved: int) -> float:
        """Return the tokens saved beyond what moving `num_moved` experts must save; positive where they should move.

        Args:
            tokens: tokens of the layer's slowest ranks under the current placement.
            proposed: the same under the proposed placement.
            num_moved: experts whose home differs between the two.
        """
        needed = max(self.least * tokens, min(self.tokens_per_move * num_moved, self.most * tokens))
        return tokens - proposed - needed


def price_replicas(params: PlanParams, load_MLE: NDArray[np.int64], model: Model, cluster: Cluster) -> ReplicaPrice:
    """Return what replicas cost by the cost model, where sizes are known.

    A least size given in `params` takes precedence over the one that the cost model gives.
    """
    # No cell can save more than all tokens, so a higher price means the same.
    of_cell = 0 if params.cost is None else round(min(params.cost.cell_tokens, float(load_MLE.sum()) + 1))
    if not model.expert_weight_size_bytes:
        return ReplicaPrice(least=max(1, params.min_tokens_per_replica), of_cell=of_cell)
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    tokens = cost.min_tokens_per_replica(model.expert_weight_size_bytes)
    if params.cost is None:
        mean_tokens = int(load_MLE.sum()) / (load_MLE[..., 0].size * cluster.num_ranks)
        tokens = max(1, min(tokens, int(_MAX_LOSS * mean_tokens)))
    return ReplicaPrice(least=params.min_tokens_per_replica or tokens, of_busiest=tokens, of_cell=of_cell)


def price_moves(params: PlanParams, model: Model, cluster: Cluster) -> Hysteresis:
    """Return what a reorder must gain: what pays for its moves, or `MIN_GAIN` where experts have no known size."""
    if not model.expert_state_size_bytes or not model.expert_weight_size_bytes:
        return Hysteresis()
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    move_us = cost.reorder_us(1, cluster.num_ranks, model.expert_state_size_bytes)
    least, most = _GUESSED_GAIN if params.cost is None else (0.0, inf)
    return Hysteresis(tokens_per_move=move_us / cost.saved_us(1), least=least, most=most)


def price_crossing(load: StepLoad, cluster: Cluster, params: PlanParams) -> NDArray[np.int64] | None:
    """Return what it costs to have an expert on a node, in tokens of the largest node, int64 `[L, N, E]`.

    The cost is that of the token copies that come from other nodes. It is summed over the rows of the step, and shared
    by all nodes, which send and receive at once. Returns None where there is only one node or crossing costs nothing.
    """
    crossing_tokens = params.cost.crossing_tokens if params.cost is not None else 0.0
    price = round(crossing_tokens / cluster.num_nodes * (1 << _UNIT_BITS))
    if cluster.num_nodes == 1 or price == 0:
        return None
    num_layers, num_experts = load.counts_SLE.shape[1:]
    stays_LNE = np.zeros((num_layers, cluster.num_nodes, num_experts), dtype=np.int64)
    for sequence, node in enumerate(load.source_rank_S // cluster.gpus_per_node):
        stays_LNE[:, node] += load.counts_SLE[sequence].astype(np.int64, copy=False)
    crossing_LNE: NDArray[np.int64] = (stays_LNE.sum(axis=1, keepdims=True) - stays_LNE) * price >> _UNIT_BITS
    return crossing_LNE
