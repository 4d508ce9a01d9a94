"""What a job registers: the MoE layers of its model, its expert-parallel groups, and how to plan for them.

Shape letters used in this package: M rows (EP groups x micro-batches), L MoE layers, E experts, R EP ranks, N nodes,
G ranks per node, S sequences, K top-k, Q quotas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.cost import CostModel
from relibra.planning.memory import NOT_KNOWN, ActivationMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The MoE layers of a model; dense layers are not counted.

    Raises:
        InvalidInput: a number is below 1, or `top_k` is above `num_experts`.
    """

    num_layers: int
    num_experts: int
    top_k: int
    expert_weight_size_bytes: int = 0
    """Bytes of one expert's weights, as they are sent to a replica. 0: not known, so replicas count as free."""
    expert_state_size_bytes: int = 0
    """Bytes of one expert's weights, fp32 masters and moments, as a reorder moves them. 0: not known, so a reorder must
    save a fixed part of the load."""

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_experts", "top_k"):
            if getattr(self, field) < 1:
                raise InvalidInput.of(f"model.{field}", expected="at least 1", got=getattr(self, field))
        if self.top_k > self.num_experts:
            raise InvalidInput.of("model.top_k", expected=f"at most num_experts = {self.num_experts}", got=self.top_k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The expert-parallel groups of a job: `num_ep_groups` groups of `num_nodes` x `gpus_per_node` ranks each.

    The ranks of a group are numbered node by node. All groups share one placement.

    Raises:
        InvalidInput: a number is below 1, or `redundant_slots` is below 0.
    """

    num_nodes: int
    gpus_per_node: int
    redundant_slots: int
    """Spare expert buffers of each rank."""
    num_ep_groups: int = 1

    def __post_init__(self) -> None:
        for field, least in (
            ("num_nodes", 1),
            ("gpus_per_node", 1),
            ("redundant_slots", 0),
            ("num_ep_groups", 1),
        ):
            if getattr(self, field) < least:
                raise InvalidInput.of(f"cluster.{field}", expected=f"at least {least}", got=getattr(self, field))

    @property
    def num_ranks(self) -> int:
        """R: the ranks of one EP group."""
        return self.num_nodes * self.gpus_per_node

    @property
    def copies_suffice(self) -> bool:
        """Whether copies alone balance all ranks, so that homes can stay: one node, whose ranks have slots."""
        return self.num_nodes == 1 and self.redundant_slots > 0

    def experts_per_rank(self, model: Model) -> int:
        """Return E/R.

        Raises:
            InvalidInput: the ranks do not divide the experts evenly.
        """
        if model.num_experts % self.num_ranks:
            raise InvalidInput.of(
                "model.num_experts",
                expected=f"a multiple of the {self.num_ranks} EP ranks ({self.num_nodes} nodes x {self.gpus_per_node})",
                got=model.num_experts,
            )
        return model.num_experts // self.num_ranks

    def identity_placement(self, model: Model) -> NDArray[np.int32]:
        """Return the `home_rank_LE` of plain expert parallelism: expert e lives on rank e // (E/R)."""
        home_E = np.arange(model.num_experts, dtype=np.int32) // np.int32(self.experts_per_rank(model))
        return np.tile(home_E, (model.num_layers, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParams:
    """How to plan. Equal inputs and equal params give byte-equal plans (S8).

    Raises:
        InvalidInput: `seed` or `min_tokens_per_replica` is below 0, or `cost` is a mapping that is no cost model.
    """

    seed: int = 0
    min_tokens_per_replica: int = 0
    """The fewest tokens a replica may have. With 0, the planner derives the number from the cost model, so that a
    replica saves what it costs; if the size of experts is not known, the number is 1."""
    cost: CostModel | None = None
    """The times of experts, dispatch and transfers. Without them, the planner guesses: it takes the defaults of
    H100-class nodes, limits their effect, and gives traffic between nodes no price."""
    homes_stay: bool = False
    """Whether every expert has its home of plain expert parallelism in every plan, so that plans only make replicas."""
    memory: ActivationMemory = NOT_KNOWN
    """What the activations of experts take, and the budget that ranks must keep."""

    def __post_init__(self) -> None:
        if isinstance(self.cost, Mapping):  # JSON gives mappings
            object.__setattr__(self, "cost", CostModel.from_dict(self.cost))
        if isinstance(self.memory, Mapping):
            object.__setattr__(self, "memory", ActivationMemory(**self.memory))
        for field in ("seed", "min_tokens_per_replica"):
            if getattr(self, field) < 0:
                raise InvalidInput.of(f"params.{field}", expected="at least 0", got=getattr(self, field))

    def counting_copies(self, model: Model, cluster: Cluster) -> "PlanParams":
        """Return the parameters whose cost model counts token copies, as dispatch of this job sends them."""
        if self.cost is None:
            return self
        cost = self.cost.counting_copies(model.top_k, model.num_experts, cluster.num_nodes)
        return replace(self, cost=cost)
