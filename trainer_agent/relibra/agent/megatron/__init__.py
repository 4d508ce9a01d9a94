"""The only part of the agent that knows megatron-core.

In:   built model chunks and their optimizer.
Out:  MoE layers that execute plans, and the parameters and optimizer state of their experts.

The agent hooks into built layers, because frameworks build layers from specs of their own. Parameters keep their
objects and names, so that DDP, optimizer and converters see an ordinary model.
"""

from megatron.core import __version__ as version

from relibra.agent.megatron.checkpoints import NotStored, plan_every_save
from relibra.agent.megatron.hooks import install, store_by_expert
from relibra.agent.megatron.layers import (
    check_layer,
    expert_groups,
    find_layers,
    gather_parameters,
    gathering,
    layers_without_plans,
    levels,
    parts,
    reduces_early,
    router_of,
    unwrap,
)
from relibra.agent.megatron.optimizer import guard_checkpoints, optimizer_parts, optimizer_state

__all__ = [
    "NotStored",
    "check_layer",
    "expert_groups",
    "find_layers",
    "gather_parameters",
    "gathering",
    "guard_checkpoints",
    "install",
    "layers_without_plans",
    "levels",
    "optimizer_parts",
    "optimizer_state",
    "parts",
    "plan_every_save",
    "reduces_early",
    "router_of",
    "store_by_expert",
    "unwrap",
    "version",
]
