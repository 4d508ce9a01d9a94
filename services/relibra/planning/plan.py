"""The plan of a step: where every expert lives, how many of its tokens each rank computes, and what that promises.

M rows, L layers, E experts, R EP ranks, Q quotas.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import rank_loads
from relibra.planning.schedule import Schedule
from relibra.planning.shares import SourceShares


class Basis(StrEnum):
    """What the loads of a plan are based on."""

    REPLAY = "replay"
    """Recorded routing that the trainer replays: the loads are known."""
    ROLLOUT = "rollout"
    """The rollout's routing, where the trainer routes anew."""
    PREVIOUS_STEPS = "previous steps"
    """The routing of earlier steps, where none of this step's is known."""


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
    basis: Basis = Basis.REPLAY
    """What the loads are based on."""
    time_us: float | None = None
    """The modelled time of experts and dispatch in the step, summed over cells. None: dispatch has no price, and only
    tokens count."""
    time_bound_us: float | None = None
    """No plan with this placement and these slots takes less time."""
    time_floor_us: float | None = None
    """No plan of any placement takes less time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", Basis(self.basis))  # JSON gives text
        # Stored plans have 0 for an unknown size. Shown as 0 B, it would say that moving experts is free (S9).
        if self.num_moved_experts and not self.reorder_size_bytes:
            object.__setattr__(self, "reorder_size_bytes", None)
        if self.num_replicas and not self.replica_size_bytes:
            object.__setattr__(self, "replica_size_bytes", None)

    def to_dict(self) -> dict[str, object]:
        """Return the numbers as stored plans have them.

        An unknown size is 0, and `basis` replay and times that are not modelled are left out.
        """
        numbers = asdict(self)
        numbers |= {key: numbers[key] or 0 for key in ("reorder_size_bytes", "replica_size_bytes")}
        left_out = {"basis"} if self.basis is Basis.REPLAY else set()
        left_out |= {key for key, value in numbers.items() if value is None}
        return {key: value for key, value in numbers.items() if key not in left_out}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The immutable plan of one step."""

    model: Model
    cluster: Cluster
    params: PlanParams
    schedule: Schedule
    home_rank_LE: NDArray[np.int32]
    quota_index_Q4: NDArray[np.int32]
    """(row, layer, expert, rank) of every quota, sorted and unique. Every expert with load in a cell has at least one
    quota, and its home has one unless replicas take over all of its tokens."""
    quota_tokens_Q: NDArray[np.int64]
    """Token copies of the expert that the rank computes."""
    shares: SourceShares
    """From which source ranks the tokens of replicas come: token counts, or fractions in a forecast."""
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
    def is_replica_Q(self) -> NDArray[np.bool_]:
        """Which quotas belong to replicas: their rank is not the expert's home."""
        _, layer_Q, expert_Q, rank_Q = self.quota_index_Q4.T
        is_replica: NDArray[np.bool_] = self.home_rank_LE[layer_Q, expert_Q] != rank_Q
        return is_replica

    @cached_property
    def rank_loads_MLR(self) -> NDArray[np.int64]:
        """Token copies that each rank computes in every cell."""
        return rank_loads(
            self.quota_index_Q4,
            self.quota_tokens_Q,
            self.num_rows,
            self.model.num_layers,
            self.cluster.num_ranks,
        )

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
        for name, array in self.arrays().items():
            digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        for block_BR in self.shares.blocks():
            digest.update(np.ascontiguousarray(block_BR).data)
        return digest.digest()

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays except the shares, under their names in the plan file and in file order."""
        return {
            "home_rank": self.home_rank_LE,
            "micro_batch": self.schedule.micro_batch_S,
            "source_rank": self.schedule.source_rank_S,
            "ep_group": self.schedule.ep_group_S,
            "quota_index": self.quota_index_Q4,
            "quota_tokens": self.quota_tokens_Q,
            "lower_bound": self.lower_bound_ML,
        }
