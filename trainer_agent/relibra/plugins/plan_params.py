"""How a job of a plug-in is planned: by the times of its experts, dispatcher and machines, with homes that may move.

The evaluation plans its presets with the same prices (`planning.machines`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from relibra.agent.link_rates import LinkRates
from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.machines.constants import middles, ranges_of
from relibra.planning.machines.dispatcher import Dispatcher, token_size_bytes
from relibra.planning.machines.hardware import HARDWARE, Hardware
from relibra.planning.machines.job_cost import job_cost
from relibra.plugins.settings import PluginSettings

_ASSUMED = HARDWARE["h100"]


def homes_stay(settings: PluginSettings, cluster: Cluster) -> bool:
    """Return whether every expert keeps its home: the user wants it, or copies alone balance the ranks of one node.

    Without redundant slots there are no copies, so experts move on one node too.
    """
    return settings.reorder == "never" or (settings.reorder == "auto" and cluster.copies_suffice)


def plan_params(
    settings: PluginSettings,
    model: Model,
    cluster: Cluster,
    config: Any,
    gpu: str | None,
    links: LinkRates = LinkRates(),  # noqa: B008
) -> tuple[PlanParams, str]:
    """Return how to plan a job, and a phrase for the log that says whose speeds its prices are.

    Args:
        settings: the settings of the plug-in.
        model: the model, with the sizes of its experts.
        cluster: the EP groups, with their redundant slots.
        config: megatron's configuration of the MoE layers.
        gpu: the name of the GPU of a rank; None if ranks have none, and then nobody knows their speeds.
        links: what ranks measured; without it, links are as fast as those of the machine that the GPU stands for.
    """
    stay, (hardware, whose) = homes_stay(settings, cluster), _hardware(settings, gpu)
    if hardware is None or not model.expert_weight_size_bytes:
        return PlanParams(homes_stay=stay), whose
    dispatcher = dispatcher_of(config)
    sent_bytes = token_size_bytes(getattr(config, "moe_latent_size", None) or config.hidden_size)
    constants = middles(ranges_of(hardware, dispatcher))
    cost = job_cost(constants, model.expert_weight_size_bytes, sent_bytes, dispatcher)
    whose = f"{whose}, dispatching with {dispatcher.value}"
    if links.inside is not None:
        cost = replace(cost, intra_node_bytes_per_us=max(links.inside, 1.0))
        whose += f", {links.inside / 1e3:.3g} GB/s inside a node as measured"
    if links.across is not None and dispatcher is Dispatcher.ALLTOALL:  # which is what was measured
        cost = replace(cost, inter_node_bytes_per_us=max(links.across, 1.0))
        whose += f", {links.across / 1e3:.3g} GB/s between nodes as measured"
    return PlanParams(cost=cost, homes_stay=stay), whose


def dispatcher_of(config: Any) -> Dispatcher:
    """Return what sends tokens to their experts, by megatron's configuration."""
    if config.moe_token_dispatcher_type != "flex":
        return Dispatcher.ALLTOALL
    is_hybridep = getattr(config, "moe_flex_dispatcher_backend", None) == "hybridep"
    return Dispatcher.HYBRIDEP if is_hybridep else Dispatcher.DEEPEP


def config_of(chunks: Sequence[nn.Module]) -> Any:
    """Return megatron's configuration of the MoE layers; that of the model on a pipeline stage without any."""
    from megatron.core.utils import get_model_config

    from relibra.agent import megatron

    layers = megatron.find_layers(chunks)
    return layers[0][0].config if layers else get_model_config(chunks[0])


def _hardware(settings: PluginSettings, gpu: str | None) -> tuple[Hardware | None, str]:
    if settings.hardware is not None:
        return HARDWARE[settings.hardware], f"those of {settings.hardware} nodes, as configured"
    if gpu is None:
        return None, "none, because ranks without GPUs have no speeds that relibra knows: plans balance tokens alone"
    for word in re.split(r"\W+", gpu.lower()):
        if word in HARDWARE:
            return HARDWARE[word], f"those of {word} nodes, by the name {gpu}"
    return _ASSUMED, f"those of {_ASSUMED.name} nodes, because relibra knows no {gpu}: set hardware to the nearest"
