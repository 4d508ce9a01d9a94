"""What replicas and moves cost, in tokens: the cost model applied to one step. `traffic` has the price of dispatch.

Where a job brings no cost model of its own, the defaults are a guess about its hardware, so their effect is limited:
the least size of a replica is at most `_MAX_LOSS` of a rank's tokens, and what moves must gain lies between two bounds.

M rows, L layers, E experts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from relibra.planning.carriage import Carriage
from relibra.planning.cost import CostModel
from relibra.planning.execution import PhaseSummary
from relibra.planning.job import Cluster, Model, PlanParams

MIN_GAIN = 0.005
"""The part of a layer's slowest-rank tokens that a reorder must save where the size of experts is not known. Reordering
all experts takes 1.4 % to 2.1 % of the time of a step (ReLibra), so this saving pays for about a third of them."""

_STEPS_OF_FIRST_PLACEMENT = 16
"""Steps within which the first reorder, away from the identity placement, must pay for itself. A placement lasts
longer, but the popularity of experts drifts."""

_GAIN_OF_LESS_TRAFFIC = 3.0
"""What later moves must gain where dispatch has a price, as a multiple of their cost. Such moves pay in most layers of
every step, and rates between nodes are among the least certain constants: experts may travel at 0.63 times the rate
that is expected, and dispatch at 1.47 times. A move that gains three times its cost pays even then."""

_GAIN_OF_WAVES = 2.0
"""The gain that later moves of all layers together must reach, as a multiple of the time of their waves. Every wave
waits for its busiest rank, which single layers do not see."""

_GUESSED_GAIN = (0.001, 0.02)
"""Bounds on the gain asked for where the cost model is a guess, as parts of the layer's tokens."""
_MAX_LOSS = 0.01
"""Cap on the least size of a replica where the cost model is a guess, as a part of a rank's mean tokens in a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrice:
    """What replicas must be worth, in tokens."""

    least: int = 1
    """The fewest tokens a replica may have."""
    of_busiest: int = 0
    """What each replica of the busiest rank counts for, in tokens of the slowest rank. The busiest rank is the one that
    most replicas leave or enter. 0 where only balance counts."""
    of_cell: int = 0
    """What the replicas of a cell must save beside their own prices: the time for which devices wait for hosts because
    of them, in tokens of the slowest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """How many tokens of its slowest ranks a layer must save in a step before experts move."""

    tokens_per_move: float = 0.0
    """What moving one expert must save."""
    least: float = MIN_GAIN
    """The part of the layer's tokens that must be saved however few experts move."""
    most: float = MIN_GAIN
    """The part of the layer's tokens that is enough however many experts move."""
    carriage: Carriage | None = None
    """How experts travel; None where the job has no cost model."""
    tokens_per_us: float = 0.0
    """The tokens of the slowest ranks that take a microsecond of a step."""

    def of_first_placement(self) -> "Hysteresis":
        """Return the hysteresis for a layer that was never reordered: its moves pay off over several steps."""
        return replace(self, tokens_per_move=self.tokens_per_move / _STEPS_OF_FIRST_PLACEMENT)

    def of_less_traffic(self) -> "Hysteresis":
        """Return the hysteresis for later moves where dispatch has a price: they must gain well above their cost."""
        return replace(self, tokens_per_move=self.tokens_per_move * _GAIN_OF_LESS_TRAFFIC)

    def loses_in_waves(
        self, tokens: float, home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], cluster: Cluster
    ) -> bool:
        """Return whether the moves of these layers together gain too little for the waves that carry them out.

        Args:
            tokens: the saving of the moves, in tokens of the slowest ranks.
            home_LE: the home ranks in these layers.
            previous_LE: the home ranks before.
            cluster: nodes and ranks.
        """
        if self.carriage is None:
            return False
        waves_us = self.carriage.us(home_LE, previous_LE, cluster.gpus_per_node)
        return tokens < _GAIN_OF_WAVES * self.tokens_per_us * waves_us

    def net_gain(self, tokens: int, proposed: int, num_moved: int) -> float:
        """Return the tokens saved beyond what moving `num_moved` experts must save; positive where they should move.

        Args:
            tokens: tokens of the layer's slowest ranks under the current placement.
            proposed: the same under the proposed placement.
            num_moved: experts whose home differs between the two.
        """
        needed = max(self.least * tokens, min(self.tokens_per_move * num_moved, self.most * tokens))
        return tokens - proposed - needed


FREE_MOVES = Hysteresis(least=0.0, most=0.0)
"""The hysteresis where moves cost nothing."""


def price_replicas(params: PlanParams, load_MLE: NDArray[np.int64], model: Model, cluster: Cluster) -> ReplicaPrice:
    """Return what replicas cost by the cost model, where sizes are known.

    A least size given in `params` takes precedence over the one that the cost model gives. Where every copy enters the
    adapter of its rank, a replica's tokens save the copies that come with them, so it may be smaller.
    """
    most = float(load_MLE.sum()) + 1  # no cell can save more than all tokens, so a higher price means the same
    mean_tokens = int(load_MLE.sum()) / (load_MLE[..., 0].size * cluster.num_ranks)
    of_cell = 0 if params.cost is None else round(min(params.cost.cell_tokens(mean_tokens), most))
    if not model.expert_weight_size_bytes:
        return ReplicaPrice(least=max(1, params.min_tokens_per_replica), of_cell=of_cell)
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    tokens = min(cost.min_tokens_per_replica(model.expert_weight_size_bytes), int(most))
    if params.cost is None:
        tokens = max(1, min(tokens, int(_MAX_LOSS * mean_tokens)))
    worth = 1.0
    if params.cost is not None and not params.cost.sends_once_per_node:
        worth += params.cost.crossing_tokens * (cluster.num_nodes - 1) / cluster.num_nodes
    least = params.min_tokens_per_replica or max(1, round(tokens / worth))
    return ReplicaPrice(least=least, of_busiest=tokens, of_cell=of_cell)


def measured_move_bytes_per_us(phases: Iterable[PhaseSummary]) -> float | None:
    """Return the rate at which a rank sent experts in the reorders of these phases together; None without a reorder.

    It divides by the time of whole reorders, so the rate includes all waits of a rank: for peers and for agreements.
    """
    moved = [phase for phase in phases if phase.reorder_sent_bytes and phase.reorder_s > 0]
    if not moved:
        return None
    sent_bytes = sum(phase.reorder_sent_bytes / phase.num_expected for phase in moved)
    return sent_bytes / (sum(phase.reorder_s for phase in moved) * 1e6)


def price_moves(
    params: PlanParams, model: Model, cluster: Cluster, move_bytes_per_us: float | None = None
) -> Hysteresis:
    """Return what a reorder must gain: the price of its moves, or `MIN_GAIN` if the size of experts is unknown.

    Where the job has a cost model, `move_bytes_per_us` takes the place of its rate between nodes in the price of a
    move. The time of waves does not use it, because waves count what the busiest rank sends, but a mean rank sent at
    the measured rate while it waited for the busiest rank.
    """
    if not model.expert_state_size_bytes or not model.expert_weight_size_bytes:
        return Hysteresis()
    cost = params.cost or CostModel.of_expert(model.expert_weight_size_bytes)
    bytes_per_us = cost.inter_node_bytes_per_us
    if params.cost is not None and move_bytes_per_us is not None:
        bytes_per_us = max(move_bytes_per_us, 1.0)
    move_us = model.expert_state_size_bytes / bytes_per_us / cluster.num_ranks
    if params.cost is None:
        least, most = _GUESSED_GAIN
        return Hysteresis(tokens_per_move=move_us / cost.saved_us(1), least=least, most=most)
    return Hysteresis(
        tokens_per_move=move_us / cost.saved_us(1),
        least=0.0,
        most=inf,
        carriage=Carriage(
            expert_bytes=model.expert_state_size_bytes,
            inside_bytes_per_us=cost.intra_node_bytes_per_us,
            across_bytes_per_us=cost.inter_node_bytes_per_us,
        ),
        tokens_per_us=1 / cost.saved_us(1),
    )
