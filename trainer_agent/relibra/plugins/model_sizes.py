"""The sizes of a model's experts, measured in the model that a framework has built."""

import logging
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.agent.expert_sizes import ExpertSizes
from relibra.agent.experts import experts_of
from relibra.planning import Model

log = logging.getLogger(__name__)


def measure_sizes(model: Model, chunks: Sequence[nn.Module], optimizer: Any) -> Model:
    """Collective over all ranks: return `model` with the sizes of its experts, equal on all ranks.

    A rank that cannot measure its experts knows no sizes, like a pipeline stage without MoE layers. `attach` then
    refuses the model on all ranks, by name, and no rank waits here for one that raised.
    """
    try:
        mine = _measure(model, chunks, optimizer)
    except Exception as error:
        log.warning("the sizes of experts could not be measured: %s", error)
        mine = model
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return max(told, key=lambda measured: measured.expert_weight_size_bytes)


def _measure(model: Model, chunks: Sequence[nn.Module], optimizer: Any) -> Model:
    from relibra.agent import megatron

    layers = [layer for layer, _ in megatron.find_layers(chunks)]
    parameters = (slot for layer in layers for slot in experts_of(layer.experts).parameters)
    measured, _ = ExpertSizes.of(parameters, megatron.optimizer_state(optimizer).bytes_per_element).fill(model)
    return measured
