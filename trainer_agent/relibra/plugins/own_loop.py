"""`balance`: put an agent into a training loop of one's own on megatron-core, with the settings of a plug-in."""

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.agent.needed import check_needs
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.plan_params import config_of
from relibra.plugins.settings import PluginSettings
from relibra.routing import ModelLayers


def balance(model_chunks: nn.Module | Sequence[nn.Module], optimizer: Any, **settings: Any) -> BalancedPasses:
    """Collective over all ranks: register the job, attach an agent to a built model, and return the job's passes.

    Layers, ranks, machines and sizes of experts are found out. With `mode="observe"` no pass has a plan.

    Args:
        model_chunks: the built module, with or without its DDP wrapper, or the list of virtual pipeline stages.
        optimizer: its megatron optimizer.
        settings: fields of `PluginSettings`, such as `planner="planner:7420"` and `job="my-job"`. `RELIBRA_PLANNER`,
            `RELIBRA_JOB` and so on in the environment serve for those that are missing.

    Raises:
        InvalidInput: there is no planner, a setting is wrong, or the model has no MoE layers.
        Unsupported: the agent cannot execute the model, the optimizer or the layout of the ranks.
        Unavailable: the embedded planner did not start, or a rank cannot reach it.
        RelibraError: attaching failed for another reason on some rank.
    """
    read = PluginSettings.read(settings, os.environ, default_job="megatron", may_pack=False)
    chunks = [model_chunks] if isinstance(model_chunks, nn.Module) else list(model_chunks)
    return attach_job(read, layers_of(chunks), chunks, optimizer)


def layers_of(chunks: Sequence[nn.Module]) -> ModelLayers:
    """Collective over all ranks: return the layers of a built model, of all its pipeline stages.

    Raises:
        InvalidInput: the model has no MoE layers.
    """
    check_needs()
    from relibra.agent import megatron  # imports what the check names, if it is missing

    of_ranks: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(of_ranks, [layer.layer_number for layer, _ in megatron.find_layers(chunks)])
    config, numbers = config_of(chunks), set(chain(*of_ranks))
    return ModelLayers(
        num_experts=config.num_moe_experts or 0,
        top_k=config.moe_router_topk,
        is_moe=tuple(number in numbers for number in range(1, config.num_layers + 1)),
    )
