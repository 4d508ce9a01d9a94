"""What a policy decides for a step: which rank computes which tokens, and which weights must travel for that.

M rows, L layers, E experts, R EP ranks, Q quotas.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad, rank_loads
from relibra.planning.plan import Plan, Quotas
from relibra.planning.split import split_step


class Known(Enum):
    """The moment when it is known which weights a cell needs away from their home."""

    AHEAD = "ahead"
    """Before the layer runs: transfers can hide behind attention."""
    ROUTED = "routed"
    """After the layer's router has run: transfers inside a node can hide behind dispatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The tokens of every cell by rank. A copy of an expert away from its home is a replica for this cell alone."""

    home_LE: NDArray[np.int32]
    """The home rank of each expert: its parameters and optimizer state live there."""
    index_Q4: NDArray[np.int32]
    """(row, layer, expert, rank) of each quota, unique."""
    tokens_Q: NDArray[np.int64]
    num_rows: int
    known: Known = Known.AHEAD
    decision_us: float = 0.0
    """The time for which every cell waits before it knows where its tokens go."""
    crossing_Q: NDArray[np.int64] | None = None
    """How many tokens of each replica come from other nodes; homes have 0 here, and get what replicas leave.
    By default every copy of an expert gets the same part of every source node's tokens."""
    copies_stay: bool = False
    """Whether every layer has slots of its own, so that weights and gradients of copies travel once a step."""
    most_sent: int | None = None
    """The most experts that a rank sends in a cell; other ranks relay the rest. None: it sends all."""
    maps_on_host: bool = False
    """Whether hosts map tokens to copies and start transfers, as relibra's agent does, and ranks gather counts for it.
    Published ways have kernels for all of it, and what their hosts do counts as nothing."""

    @classmethod
    def of_plan(cls, plan: Plan, load: StepLoad) -> "Assignment":
        """Return what ranks make of a plan where a step routes `load`, which need not be the load that it expects."""
        return cls.of_replicas(load, plan.home_rank_LE, plan.replica_index_Y4, plan.cluster)

    @classmethod
    def of_replicas(
        cls, load: StepLoad, home_LE: NDArray[np.int32], replica_index_Y4: NDArray[np.int32], cluster: Cluster
    ) -> "Assignment":
        """Return how ranks split `load` over the homes and replicas that there are."""
        tokens_Y, crossing_Y = split_step(
            load.load_MLE,
            load.crossing_MLE(home_LE, cluster),
            home_LE,
            replica_index_Y4,
            cluster.gpus_per_node,
            cluster.num_ranks,
        )
        quotas = Quotas.of(load.load_MLE, home_LE, replica_index_Y4, tokens_Y)
        crossing_Q = np.zeros(len(quotas.tokens_Q), dtype=np.int64)
        crossing_Q[quotas.is_replica_Q] = crossing_Y[tokens_Y > 0]
        return cls(
            home_LE=home_LE,
            index_Q4=quotas.index_Q4,
            tokens_Q=quotas.tokens_Q,
            num_rows=load.num_rows,
            maps_on_host=True,
            crossing_Q=crossing_Q,
        )

    @property
    def is_replica_Q(self) -> NDArray[np.bool_]:
        """Whether each quota is computed away from the expert's home."""
        _, layer_Q, expert_Q, rank_Q = self.index_Q4.T
        is_replica: NDArray[np.bool_] = self.home_LE[layer_Q, expert_Q] != rank_Q
        return is_replica

    def rank_loads_MLR(self, cluster: Cluster) -> NDArray[np.int64]:
        """Return the token copies that each rank computes in every cell."""
        return rank_loads(self.index_Q4, self.tokens_Q, self.num_rows, len(self.home_LE), cluster.num_ranks)


def at_home(load_MLE: NDArray[np.integer], home_LE: NDArray[np.int32]) -> Assignment:
    """Return the assignment that computes every token on its expert's home rank."""
    row_Q, layer_Q, expert_Q = np.nonzero(load_MLE)
    index_Q4 = np.stack([row_Q, layer_Q, expert_Q, home_LE[layer_Q, expert_Q]], axis=1).astype(np.int32)
    tokens_Q = load_MLE[row_Q, layer_Q, expert_Q].astype(np.int64)
    return Assignment(home_LE=home_LE, index_Q4=index_Q4, tokens_Q=tokens_Q, num_rows=len(load_MLE))


def from_pieces(
    index_X4: NDArray[np.integer],
    tokens_X: NDArray[np.integer],
    home_LE: NDArray[np.int32],
    num_rows: int,
    known: Known = Known.AHEAD,
    decision_us: float = 0.0,
) -> Assignment:
    """Return the assignment that the given pieces add up to.

    Args:
        index_X4: (row, layer, expert, rank) of each piece, in any order; several pieces may have the same place.
        tokens_X: the tokens of each piece; pieces without tokens are dropped.
        home_LE: the home rank of each expert.
        num_rows: M.
        known: when the assignment is known.
        decision_us: the time for which every cell waits for the assignment.
    """
    width = index_X4.max(axis=0, initial=0).astype(np.int64) + 1
    key_X = np.ravel_multi_index(tuple(index_X4.T), tuple(width))
    key_Q, piece_X = np.unique(key_X, return_inverse=True)
    tokens_Q = np.zeros(len(key_Q), dtype=np.int64)
    np.add.at(tokens_Q, piece_X, tokens_X)
    index_Q4 = np.stack(np.unravel_index(key_Q, tuple(width)), axis=1).astype(np.int32)
    return Assignment(
        home_LE=home_LE,
        index_Q4=index_Q4[tokens_Q > 0],
        tokens_Q=tokens_Q[tokens_Q > 0],
        num_rows=num_rows,
        known=known,
        decision_us=decision_us,
    )
