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
"""Part of a layer's slowest-rank tokens that a costlier placement must save where the size of experts is not known.
Reordering all experts takes 1.4 % to 2.1 % of the time of a step (ReLibra), so this pays for about a third of them."""

_STEPS_OF_FIRST_PLACEMENT = 16
"""Within so many steps the experts that leave where plain expert parallelism puts them must pay for it: the placement
lasts for longer, but popularity drifts."""

_GUESSED_GAIN = (0.001, 0.02)
_MAX_LOSS = 0.01
"""Part of a rank's mean tokens in a cell."""

_UNIT_BITS = 10
"""Prices are whole multiples of 2**-10 tokens, so that they are the same on every host (S8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrice:
    """What replicas must be worth, in tokens."""

    least: int = 1
    """Tokens that a replica has at least."""
    of_busiest: int = 0
    """Tokens of the slowest rank that each replica of the busiest rank is weighed as; 0 where balance is all that
    counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """How many tokens of its slowest ranks a layer must save in a step so that experts move for it."""

    tokens_per_move: float = 0.0
    least: float = MIN_GAIN
    """Part of the layer's tokens to save, however few experts move."""
    most: float = MIN_GAIN
    """Part of the layer's tokens that is enough, however many move."""

    def of_first_placement(self) -> "Hysteresis":
        """The same for a layer that has never been placed: what moves there is not for one step only."""
        return replace(self, tokens_per_move=self.tokens_per_move / _STEPS_OF_FIRST_PLACEMENT)

    def net_gain(self, tokens: int, proposed: int, num_moved: int) -> float:
        """Tokens saved beyond what `num_moved` experts must save; positive where they should move."""
        needed = max(self.least * tokens, min(self.tokens_per_move * num_moved, self.most * tokens))
        return tokens - proposed - needed


def price_replicas(params: PlanParams, load_MLE: NDArray[np.int64], model: Model, cluster: Cluster) -> ReplicaPrice:
    """Return what the cost model asks of replicas where sizes are known; a least size in `params` goes first."""
    if not model.expert_weight_size_bytes:
        return ReplicaPrice(least=max(1, params.min_tokens_per_replica))
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    tokens = cost.min_tokens_per_replica(model.expert_weight_size_bytes)
    if params.cost is None:
        mean_tokens = int(load_MLE.sum()) / (load_MLE[..., 0].size * cluster.num_ranks)
        tokens = max(1, min(tokens, int(_MAX_LOSS * mean_tokens)))
    return ReplicaPrice(least=params.min_tokens_per_replica or tokens, of_busiest=tokens)


def price_moves(params: PlanParams, model: Model, cluster: Cluster) -> Hysteresis:
    """Return what moving experts must gain: `MIN_GAIN` where their size is not known, else what pays for the move."""
    if not model.expert_state_size_bytes or not model.expert_weight_size_bytes:
        return Hysteresis()
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    move_us = cost.reorder_us(1, cluster.num_ranks, model.expert_state_size_bytes)
    least, most = _GUESSED_GAIN if params.cost is None else (0.0, inf)
    return Hysteresis(tokens_per_move=move_us / cost.saved_us(1), least=least, most=most)


def price_crossing(load: StepLoad, cluster: Cluster, params: PlanParams) -> NDArray[np.int64] | None:
    """Return what living on a node costs every expert, in tokens of the largest node, int64 `[L, N, E]`.

    It is summed over the rows of the step and shared by the ranks of all nodes, which send and receive at once. None
    where there is one node only, or crossing costs nothing.
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
