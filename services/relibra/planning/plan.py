"""The plan of a step: where every expert lives, which of them have replicas in each cell, and what that promises.

A plan does not say which tokens go where. Every rank computes that from the tokens that really come (`split`), and the
token counts here are what the planner expects.

M rows, L layers, E experts, R EP ranks, Y replicas, Q quotas.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import home_loads
from relibra.planning.peak import StepMemory
from relibra.planning.schedule import Schedule


class Level(StrEnum):
    """The knowledge of a step from which its plan is made. Ranks split the tokens that come, whatever the level."""

    HISTORY = "history"
    """The loads of earlier steps."""
    STEP = "step"
    """The sequences of the step, but not which of them share a micro-batch."""
    MICRO_BATCHES = "micro-batches"
    """The micro-batches of the step."""

    def __lt__(self, other: str) -> bool:
        """Return whether less is known than at another level."""
        return list(Level).index(self) < list(Level).index(Level(other))


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a plan promises, in numbers.

    Imbalances are slowest rank over mean rank, summed over cells; 1.0 is ideal. Where loads are not known, they are the
    imbalances of the expected loads.
    """

    imbalance_before: float
    """Under the identity placement without replicas."""
    imbalance_after: float
    """Under the plan."""
    imbalance_bound: float
    """No plan with this placement and these slots has a lower imbalance."""
    num_moved_experts: int
    """Experts whose home differs from the previous placement, over all layers."""
    num_replicas: int
    """Replicas of all cells."""
    reorder_size_bytes: int | None
    """State of the moved experts, over all EP groups. None: experts move, and the model gives no sizes."""
    replica_size_bytes: int | None
    """Weights of the replicas of all cells, sent once. None: there are replicas, and the model gives no sizes."""
    imbalance_floor: float = 1.0
    """No plan of any placement has a lower imbalance."""
    level: Level = Level.MICRO_BATCHES
    """What was known."""
    imbalance_known: float | None = None
    """Below level micro-batches: the imbalance, with this placement, of the micro-batches that the plan was made from,
    had each been known. This is what level micro-batches would give."""
    time_us: float | None = None
    """The modelled time of experts and dispatch in the step, summed over cells. None: dispatch has no price, and only
    tokens count."""
    time_bound_us: float | None = None
    """No plan with this placement and these slots takes less time."""
    time_floor_us: float | None = None
    """No plan of any placement takes less time."""
    memory: StepMemory | None = None
    """The hottest rank, without relibra and under the plan."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", Level(self.level))  # JSON gives text
        if isinstance(self.memory, Mapping):
            object.__setattr__(self, "memory", StepMemory(**self.memory))
        # Stored plans have 0 for an unknown size. Shown as 0 B, it would say that moving experts is free (S9).
        if self.num_moved_experts and not self.reorder_size_bytes:
            object.__setattr__(self, "reorder_size_bytes", None)
        if self.num_replicas and not self.replica_size_bytes:
            object.__setattr__(self, "replica_size_bytes", None)

    @property
    def expected_gain(self) -> float:
        """The time that experts save over plain expert parallelism, as a part of their time under the plan."""
        return max(0.0, self.imbalance_before / self.imbalance_after - 1)

    @property
    def excess(self) -> str:
        """`StepMemory.excess`."""
        return "" if self.memory is None else self.memory.excess

    def to_dict(self) -> dict[str, object]:
        """Return the numbers as stored plans have them.

        An unknown size is 0, and times that are not modelled are left out.
        """
        numbers = asdict(self)
        numbers |= {key: numbers[key] or 0 for key in ("reorder_size_bytes", "replica_size_bytes")}
        return {key: value for key, value in numbers.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """How many tokens of every expert each rank computes.

    Ranks that compute no token of an expert have no line, its home included if replicas take all its tokens.
    """

    index_Q4: NDArray[np.int32]
    """(row, layer, expert, rank), sorted and unique."""
    tokens_Q: NDArray[np.int64]
    """At least 1 each."""
    is_replica_Q: NDArray[np.bool_]
    """Whether the rank is not the expert's home."""

    @classmethod
    def of(
        cls,
        load_MLE: NDArray[np.int64],
        home_LE: NDArray[np.int32],
        replica_index_Y4: NDArray[np.int32],
        replica_tokens_Y: NDArray[np.int64],
    ) -> "Quotas":
        """Return the quotas of replicas with these tokens, and of the homes, which compute the rest."""
        rest_MLE = load_MLE.copy()
        np.subtract.at(rest_MLE, tuple(replica_index_Y4[:, :3].T), replica_tokens_Y)
        row_X, layer_X, expert_X = np.nonzero(rest_MLE)
        home_X4 = np.stack([row_X, layer_X, expert_X, home_LE[layer_X, expert_X]], axis=1).astype(np.int32)
        is_used_Y = replica_tokens_Y > 0
        index_Q4 = np.concatenate([home_X4, replica_index_Y4[is_used_Y]])
        tokens_Q = np.concatenate([rest_MLE[row_X, layer_X, expert_X], replica_tokens_Y[is_used_Y]])
        order_Q = np.lexsort(index_Q4.T[::-1])
        return cls(index_Q4=index_Q4[order_Q], tokens_Q=tokens_Q[order_Q], is_replica_Q=(order_Q >= len(home_X4)))


def replicated_loads(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    replica_index_Y4: NDArray[np.int32],
    replica_tokens_Y: NDArray[np.int64],
    num_ranks: int,
) -> NDArray[np.int64]:
    """Return the token copies that each rank computes where replicas take these tokens, int64 `[M, L, R]`."""
    loads_MLR = home_loads(load_MLE, home_LE, num_ranks)
    row_Y, layer_Y, expert_Y, rank_Y = replica_index_Y4.T
    np.add.at(loads_MLR, (row_Y, layer_Y, rank_Y), replica_tokens_Y)
    np.subtract.at(loads_MLR, (row_Y, layer_Y, home_LE[layer_Y, expert_Y]), replica_tokens_Y)
    return loads_MLR


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The immutable plan of one step."""

    model: Model
    cluster: Cluster
    params: PlanParams
    schedule: Schedule
    home_rank_LE: NDArray[np.int32]
    replica_index_Y4: NDArray[np.int32]
    """(row, layer, expert, rank) of every replica, sorted and unique; on the node of the expert's home, never on it."""
    load_MLE: NDArray[np.int64]
    """The token copies of every cell that the plan was made for."""
    replica_tokens_Y: NDArray[np.int64]
    """How many of them each replica computes (`split_step`); the homes compute the rest."""
    lower_bound_ML: NDArray[np.float64]
    """A lower bound on the slowest rank's tokens in every cell, for any plan with this placement and these slots."""
    prediction: Prediction
    reason: str
    """Why the plan is what it is, in one sentence for people."""
    repacked: bool = False
    """Whether relibra chose the schedule (`pack`)."""

    @property
    def num_rows(self) -> int:
        """M: rows of all EP groups."""
        return self.schedule.num_rows(self.cluster)

    @cached_property
    def rank_loads_MLR(self) -> NDArray[np.int64]:
        """Token copies that each rank computes in every cell."""
        return replicated_loads(
            self.load_MLE, self.home_rank_LE, self.replica_index_Y4, self.replica_tokens_Y, self.cluster.num_ranks
        )

    @cached_property
    def quotas(self) -> Quotas:
        """The token copies of every expert by rank, homes and replicas together."""
        return Quotas.of(self.load_MLE, self.home_rank_LE, self.replica_index_Y4, self.replica_tokens_Y)

    @cached_property
    def meta(self) -> str:
        """Everything that is not an array, as canonical JSON without the digest."""
        return json.dumps(
            {
                "model": asdict(self.model),
                "cluster": asdict(self.cluster),
                "params": asdict(self.params),
                "prediction": self.prediction.to_dict(),
                "reason": self.reason,
                "repacked": self.repacked,
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content. Equal plans have equal digests on any host (S8)."""
        digest = hashlib.sha256(self.meta.encode())
        for array in (
            self.home_rank_LE,
            self.schedule.micro_batch_S,
            self.schedule.source_rank_S,
            self.schedule.ep_group_S,
            self.replica_index_Y4,
            self.load_MLE,
            self.replica_tokens_Y,
            self.lower_bound_ML,
        ):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()
