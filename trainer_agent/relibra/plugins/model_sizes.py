"""The sizes of a model's experts, measured in the model that a framework has built."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.agent.expert_sizes import ExpertSizes
from relibra.agent.experts import experts_of
from relibra.planning import Model


def sized(model: Model, chunks: Sequence[nn.Module], optimizer: Any) -> Model:
    """Collective over all ranks: return `model` with the sizes of its experts, equal on all ranks.

    Raises:
        Unsupported: the agent cannot execute these experts or this optimizer.
    """
    from relibra.agent import megatron

    layers = [layer for layer, _ in megatron.find_layers(chunks)]
    parameters = (slot for layer in layers for slot in experts_of(layer.experts).parameters)
    mine, _ = ExpertSizes.of(parameters, megatron.optimizer_state(optimizer).bytes_per_element).fill(model)
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    # A pipeline stage without MoE layers knows no sizes.
    return max(told, key=lambda each: each.expert_weight_size_bytes)
