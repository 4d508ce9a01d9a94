"""How a job of a plug-in is planned: by the times of its experts, dispatcher and machines, with homes that may move.

The evaluation plans its presets with the same prices (`planning.machines`).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from relibra.agent.expert_times import ExpertTimes
from relibra.agent.link_rates import LinkRates
from relibra.planning import Cluster, CostModel, Model, PlanParams
from relibra.planning.machines.constants import middles, ranges_of
from relibra.planning.machines.dispatcher import ACROSS_SHARE, Dispatcher, token_size_bytes
from relibra.planning.machines.hardware import HARDWARE, Hardware
from relibra.planning.machines.job_cost import job_cost
from relibra.plugins.settings import PluginSettings

_ASSUMED = HARDWARE["h100"]
_SANE = 10.0
"""The largest factor between a measured price and its preset; beyond it, something else was measured."""


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
    times: ExpertTimes = ExpertTimes(),  # noqa: B008
) -> tuple[PlanParams, str]:
    """Return how to plan a job, and a phrase for the log that says whose speeds its prices are.

    Args:
        settings: the settings of the plug-in.
        model: the model, with the sizes of its experts.
        cluster: the EP groups, with their redundant slots.
        config: megatron's configuration of the MoE layers.
        gpu: the name of the GPU of a rank; None if ranks have none, and then nobody knows their speeds.
        links: what ranks measured; without it, links are as fast as those of the machine that the GPU stands for.
        times: what ranks measured; without it, experts are as fast as on that machine.
    """
    stay, (hardware, whose) = homes_stay(settings, cluster), _hardware(settings, gpu)
    if hardware is None or not model.expert_weight_size_bytes:
        return PlanParams(homes_stay=stay), whose
    dispatcher = dispatcher_of(config)
    sent_bytes = token_size_bytes(getattr(config, "moe_latent_size", None) or config.hidden_size)

    def cost_on(hardware: Hardware) -> CostModel:
        constants = middles(ranges_of(hardware, dispatcher))
        return job_cost(constants, model.expert_weight_size_bytes, sent_bytes, dispatcher, hardware.measured)

    hardware, corrections = corrected(hardware, dispatcher, cost_on(hardware), links, times)
    whose = ", ".join((whose, f"dispatching with {dispatcher.value}", *corrections))
    return PlanParams(cost=cost_on(hardware), homes_stay=stay), whose


def corrected(
    hardware: Hardware, dispatcher: Dispatcher, table: CostModel, links: LinkRates, times: ExpertTimes
) -> tuple[Hardware, list[str]]:
    """Return the machine as ranks measured it, and what the log says of every price that they measured.

    Args:
        hardware: the preset.
        dispatcher: what sends the job's tokens.
        table: the prices of the job on the preset.
        links: what ranks measured.
        times: what ranks measured.
    """
    corrections = list[str]()

    def believed(price: float, measured: float | None, text: str, scale: float) -> float | None:
        if measured is None:
            return None
        is_sane = price / _SANE <= measured <= price * _SANE
        but = "" if is_sane else f", which is not believed: the preset has {scale * price:.3g}"
        corrections.append(f"{text.format(scale * measured)} as measured{but}")
        return measured if is_sane else None

    alltoall = ranges_of(hardware, Dispatcher.ALLTOALL)["dispatch_across_bytes_per_us"].mid
    inside = believed(table.intra_node_bytes_per_us, links.inside, "{:.3g} GB/s inside a node", 1e-3)
    across = believed(alltoall, links.across, "{:.3g} GB/s of an all-to-all between nodes", 1e-3)
    per_token = believed(table.us_per_token, times.us_per_token, "{:.3g} ns for a token of an expert", 1e3)
    fixed = believed(table.expert_us[0], times.fixed_us, "{:.3g} us for each further expert", 1.0)
    if times.us_per_token is None:
        corrections.append("the time of experts not measured")
    if across is not None:
        hardware = with_adapters(hardware, across)
    expert_us = table.expert_us
    if per_token is not None or fixed is not None:
        first = expert_us[0] if fixed is None else fixed
        expert_us = (first, first + (per_token or table.us_per_token) * table.expert_tokens[-1])
    measured = CostModel(expert_tokens=table.expert_tokens, expert_us=expert_us)
    if inside is not None:
        measured = replace(measured, intra_node_bytes_per_us=inside)
    if across is not None and dispatcher is Dispatcher.ALLTOALL:  # which is what was measured
        measured = replace(measured, inter_node_bytes_per_us=across)
    return replace(hardware, measured=measured), corrections


def with_adapters(hardware: Hardware, alltoall_bytes_per_us: float) -> Hardware:
    """Return the machine with network adapters that fit a measured rate of an all-to-all: a preset only guesses them.

    The adapters' peak stays if all-to-alls on it may reach the measured rate; else the nearest peak on which they may
    replaces it. Dispatchers that were not measured reach their own share of the peak.
    """
    share, peak = ACROSS_SHARE[Dispatcher.ALLTOALL], hardware.network_bytes_per_us
    nearest = min(max(peak, alltoall_bytes_per_us / share.high), alltoall_bytes_per_us / share.low)
    return replace(hardware, network_bytes_per_us=nearest)


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
