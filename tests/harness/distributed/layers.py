"""Scenarios with MoE layers of every kind: for multi-token prediction, in a model with vision, with adapters, ..."""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from harness.distributed.gpt_model import RECOMPUTE
from harness.distributed.matrix import compare
from relibra.agent import Agent
from relibra.agent.experts import SequentialExperts
from relibra.planning import Cluster

Result = dict[str, Any]
PREDICTION: dict[str, Any] = {"mtp_num_layers": 2}
OVERLAP: dict[str, Any] = {
    "moe_shared_expert_overlap": True,
    "moe_router_num_groups": 3,
    "moe_router_group_topk": 2,
    "native": True,
}
RECOMPUTED_LAYERS: dict[str, Any] = {"recompute_granularity": "selective", "recompute_modules": ["moe", "core_attn"]}
DENSE_ADAPTERS: dict[str, Any] = {"adapted": ("linear_qkv", "linear_proj", "mlp.router")}
EXPERT_ADAPTERS: dict[str, Any] = {"adapted": ("linear_qkv", "linear_fc1", "linear_fc2")}

trained = functools.partial(compare, bf16=False)
SHARDED = functools.partial(trained, sharded=True)
PLAIN = functools.partial(trained, sharded=False)


def without_shared_experts(cluster: Cluster) -> Result:
    """Leave the shared experts out of the dispatcher over physical slots."""
    plain = MoEAlltoAllTokenDispatcher.set_shared_experts

    def set_shared_experts(self: MoEAlltoAllTokenDispatcher, shared_experts: Any) -> None:
        if self.config.num_moe_experts == shared_experts.config.num_moe_experts:
            plain(self, shared_experts)

    with mock.patch.object(MoEAlltoAllTokenDispatcher, "set_shared_experts", set_shared_experts):
        return PLAIN(cluster, experts=OVERLAP)


def adapters_left_behind(cluster: Cluster) -> Result:
    """Let experts move without their adapters. The comparison must miss gradients under the names of adapters."""
    plain = SequentialExperts.__init__

    def initialise(self: SequentialExperts, module: Any) -> None:
        plain(self, module)
        kept = [i for i, name in enumerate(self._names) if ".adapter." not in name]
        self._names = [self._names[i] for i in kept]
        self.parameters = [[of_slot[i] for i in kept] for of_slot in self.parameters]

    with mock.patch.object(SequentialExperts, "__init__", initialise):
        return _noticed(cluster, EXPERT_ADAPTERS)


def _noticed(cluster: Cluster, experts: dict[str, Any]) -> Result:
    try:
        PLAIN(cluster, experts=experts)
    except AssertionError as error:
        return {"noticed": str(error)}
    return {"noticed": "nothing"}


def prediction_named_by_place(cluster: Cluster) -> Result:
    """Name the experts of layers for multi-token prediction by their place on a rank. Names of others are missing."""
    plain = Agent._logical

    def logical(self: Agent) -> Any:
        unplanned = set(map(id, self._unplanned))
        return (each for each in plain(self) if id(each[0]) not in unplanned)

    with mock.patch.object(Agent, "_logical", logical):
        return _noticed(cluster, PREDICTION | {"with_vision": True})


Scenarios = dict[str, Callable[[Cluster], Result]]
STAGES: Scenarios = {"prediction": functools.partial(SHARDED, experts=PREDICTION, **RECOMPUTE["full"])}
ONE_GROUP: Scenarios = {
    "prediction_with_vision": functools.partial(PLAIN, experts=PREDICTION | {"with_vision": True}),
    "prediction_named_by_place": prediction_named_by_place,
}
TWO_GROUPS: Scenarios = {
    "shared_experts_overlapped": functools.partial(SHARDED, experts=OVERLAP, **RECOMPUTED_LAYERS),
    "without_shared_experts": without_shared_experts,
    "latent": functools.partial(PLAIN, experts={"moe_latent_size": 16}, **RECOMPUTED_LAYERS),
    "dense_adapters": functools.partial(SHARDED, experts=DENSE_ADAPTERS, **RECOMPUTE["selective"]),
    "expert_adapters": functools.partial(SHARDED, experts=EXPERT_ADAPTERS, **RECOMPUTE["selective"]),
    "adapters_left_behind": adapters_left_behind,
}
