"""The plan of a step: where every expert lives, and how many of its tokens each rank computes.

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
    """Known: what was recorded is what will run."""
    ROLLOUT = "rollout"
    """The rollout's routing, where the trainer does not replay it."""
    PREVIOUS_STEPS = "previous steps"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a plan promises, in numbers. Imbalances as DESIGN defines them: 1.0 is ideal."""

    imbalance_before: float
    """Under the identity placement without replicas."""
    imbalance_after: float
    imbalance_bound: float
    """No plan with this placement and these slots is below it."""
    num_moved_experts: int
    """Experts whose home differs from the previous placement, over all layers."""
    num_replicas: int
    reorder_size_bytes: int
    replica_size_bytes: int
    imbalance_floor: float = 1.0
    """No plan is below it, whatever its placement."""
    basis: Basis = Basis.REPLAY
    """Where loads are not known, the imbalances are those of the expected loads."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", Basis(self.basis))  # as from JSON

    def to_dict(self) -> dict[str, object]:
        """As JSON; the basis only where it is not replay."""
        numbers = asdict(self)
        return numbers if self.basis is not Basis.REPLAY else {key: numbers[key] for key in numbers if key != "basis"}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One immutable step plan.

    `quota_index_Q4` is int32 (row, layer, expert, rank), sorted and unique, with a line for every (cell, expert) that
    has load, the home's share included; `quota_tokens_Q` int64 are the token copies that rank computes.
    """

    model: Model
    cluster: Cluster
    params: PlanParams
    schedule: Schedule
    home_rank_LE: NDArray[np.int32]
    quota_index_Q4: NDArray[np.int32]
    quota_tokens_Q: NDArray[np.int64]
    shares: SourceShares
    """From which source ranks the tokens of replicas come; in a forecast plan, the fraction they take from each."""
    lower_bound_ML: NDArray[np.float64]
    """Tokens of the slowest rank that no plan with this placement and these slots can go below."""
    prediction: Prediction
    reason: str
    repacked: bool = False

    @property
    def num_rows(self) -> int:
        """M."""
        return self.schedule.num_rows(self.cluster)

    @cached_property
    def is_replica_Q(self) -> NDArray[np.bool_]:
        """Which quotas are computed away from the expert's home."""
        _, layer_Q, expert_Q, rank_Q = self.quota_index_Q4.T
        is_replica: NDArray[np.bool_] = self.home_rank_LE[layer_Q, expert_Q] != rank_Q
        return is_replica

    @cached_property
    def rank_loads_MLR(self) -> NDArray[np.int64]:
        """Token copies each rank computes in every cell."""
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
        """SHA-256 of the content: equal plans, equal digests, on any host (S8)."""
        digest = hashlib.sha256(self.meta.encode())
        for name, array in self.arrays().items():
            digest.update(f"{name}{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        for block_BR in self.shares.blocks():
            digest.update(np.ascontiguousarray(block_BR).data)
        return digest.digest()

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The arrays under their names in the plan file, in file order; all but the shares."""
        return {
            "home_rank": self.home_rank_LE,
            "micro_batch": self.schedule.micro_batch_S,
            "source_rank": self.schedule.source_rank_S,
            "ep_group": self.schedule.ep_group_S,
            "quota_index": self.quota_index_Q4,
            "quota_tokens": self.quota_tokens_Q,
            "lower_bound": self.lower_bound_ML,
        }
