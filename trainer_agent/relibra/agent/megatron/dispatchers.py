"""Dispatchers over physical slots: each layer gets a second dispatcher of its own kind, for cells with replicas.

Megatron derives everything in a dispatcher from the number of experts and the local ones among them, so a dispatcher
that is told of slots instead of experts dispatches to slots. Two kinds need more than that:

- DeepEP takes the experts of each token and not a routing map. Megatron takes the K largest probabilities of each
  token for them, which finds other slots if a copy has probability 0 or a token has fewer than K copies. Such slots
  may be empty. The dispatcher over slots therefore gets the copies of the routing map.
- HybridEP has one buffer for all layers of a process, for a number of slots that megatron gives with every dispatch.
  The buffer grows when a cell with replicas comes first, on all ranks of the EP group together, and never shrinks.
"""

import copy
from typing import Any

from megatron.core.transformer.moe.token_dispatcher import (
    MoEAllGatherTokenDispatcher,
    MoEAlltoAllTokenDispatcher,
    MoEFlexTokenDispatcher,
)
from torch import Tensor

from relibra.agent.cells.token_copies import token_copies
from relibra.agent.needed import check_instances, check_needs
from relibra.agent.needs import DISPATCHER_NEEDS
from relibra.agent.refusals import refuse
from relibra.errors import InvalidInput
from relibra.planning import Cluster

_DEEPEP, _HYBRIDEP = "_DeepepManager", "_HybridEPManager"
_GROUPS = ("ep_group", "tp_group", "tp_ep_group")
_HYBRIDEP_MULTIPLE = 4
"""The number of slots of the ranks that NVLink connects is a multiple of this number (DeepEP, `BufferConfig`)."""


def check_dispatcher(dispatcher: Any, num_experts_per_rank: int, cluster: Cluster) -> None:
    """Check the dispatcher of a layer.

    Raises:
        Unsupported: the dispatcher is not one of megatron's own, or lacks something that the agent hooks into.
        InvalidInput: HybridEP cannot dispatch to the slots of `cluster`.
    """
    if not isinstance(dispatcher, MoEAlltoAllTokenDispatcher | MoEAllGatherTokenDispatcher | MoEFlexTokenDispatcher):
        raise refuse(
            f"a dispatcher of type {type(dispatcher).__name__}", "megatron's own 'alltoall', 'allgather' or 'flex'"
        )
    manager = manager_of(dispatcher)
    if isinstance(dispatcher, MoEFlexTokenDispatcher) and not (_is(manager, _DEEPEP) or _is(manager, _HYBRIDEP)):
        raise refuse(
            f"a flex dispatcher with a manager of type {type(manager).__name__}",
            "moe_flex_dispatcher_backend='deepep' or 'hybridep'",
        )
    num_slots = (num_experts_per_rank + cluster.redundant_slots) * cluster.gpus_per_node
    if _is(manager, _HYBRIDEP) and num_slots % _HYBRIDEP_MULTIPLE:
        raise InvalidInput.of(
            "cluster.redundant_slots",
            expected=f"a number of slots per node that {_HYBRIDEP_MULTIPLE} divides, which HybridEP asks for",
            got=f"{cluster.redundant_slots}, which makes {num_slots} slots on {cluster.gpus_per_node} GPUs",
        )
    for part in (dispatcher, manager):
        for base in type(part).__mro__:
            needs = DISPATCHER_NEEDS.get(base.__name__, ())
            check_needs(needs)
            check_instances([part], needs)


def over_slots(plain: Any, config: Any, first_slot: int, slots_per_rank: int, num_ranks: int) -> Any:
    """Return a dispatcher of the kind of `plain` over the slots of all ranks; `config` is that of the layer."""
    config = copy.copy(config)
    config.num_moe_experts = num_ranks * slots_per_rank
    slots = list(range(first_slot, first_slot + slots_per_rank))
    dispatcher = type(plain)(slots_per_rank, slots, config=config, pg_collection=_GroupsOf(plain))
    if plain.shared_experts is not None:  # with moe_shared_expert_overlap, they run inside the dispatcher
        dispatcher.set_shared_experts(plain.shared_experts)
    if _is(manager_of(dispatcher), _DEEPEP):
        hand_over_copies(manager_of(dispatcher))
    return dispatcher


def use_groups_of(plain: Any, dispatcher: Any) -> None:
    """Let `dispatcher` use the groups that `plain` has now: a framework may have created its groups again."""
    vars(dispatcher).update({name: getattr(plain, name) for name in _GROUPS})
    if (manager := manager_of(dispatcher)) is not None:
        manager.group = manager_of(plain).group


def hand_over_copies(manager: Any) -> None:
    """Let DeepEP's manager dispatch the copies of the routing map instead of the largest probabilities."""

    def setup_metadata(routing_map: Tensor, probs: Tensor) -> None:
        num_tokens = routing_map.shape[0]
        manager.token_indices, manager.token_probs = token_copies(
            routing_map.reshape(num_tokens, manager.num_experts),
            probs.reshape(num_tokens, manager.num_experts),
            manager.router_topk,
        )

    manager.setup_metadata = setup_metadata


def manager_of(dispatcher: Any) -> Any:
    """Return what a flex dispatcher dispatches with, or None for another dispatcher."""
    return getattr(dispatcher, "_comm_manager", None)


def is_hybridep(dispatcher: Any) -> bool:
    """Return whether a dispatcher is HybridEP."""
    return _is(manager_of(dispatcher), _HYBRIDEP)


def _is(manager: Any, name: str) -> bool:
    # By name, because a megatron that has never heard of a backend lacks the class.
    return any(base.__name__ == name for base in type(manager).__mro__)


class _GroupsOf:
    """The process groups a dispatcher was built with, as the collection its constructor reads."""

    def __init__(self, dispatcher: Any) -> None:
        self.ep = dispatcher.ep_group
        self.expt_tp = dispatcher.tp_group
        self.tp_ep = dispatcher.tp_ep_group
