"""`observe`: count what the routers of any model choose, and report it. Nothing moves, and no weight changes."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from relibra.agent import AgentConfig, Session, shared_attempt
from relibra.agent.groups import Seat
from relibra.agent.homes.optimizer_steps import around_steps
from relibra.agent.observed.choices import chosen_experts
from relibra.agent.observed.counter import ChoiceCounter
from relibra.agent.observed.observer import Observer, register
from relibra.agent.plans.stopwatch import clock_of
from relibra.planning import Model
from relibra.plugins import embedded
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.kept_log import keep_log
from relibra.plugins.model_sizes import measure_sizes
from relibra.plugins.nodes import cluster_of, gather_hosts
from relibra.plugins.settings import PluginSettings
from relibra.routing import ModelLayers

log = logging.getLogger(__name__)

_SLOTS = 2
"""The redundant slots per rank that the status service compares ways of balancing with, if the user names none."""


def observe(
    routers: Sequence[nn.Module] | Mapping[int, nn.Module],
    *,
    num_experts: int,
    top_k: int,
    group: dist.ProcessGroup | None = None,
    optimizer: Any = None,
    chosen: Callable[[Any], Tensor] | None = None,
    settings: PluginSettings | None = None,
    expert_weight_size_bytes: int = 0,
) -> Observer:
    """Collective over all ranks: count what routers choose in micro-batches that train, and report it to the planner.

    Args:
        routers: the routers of this rank's MoE layers, in their order; with pipeline parallelism by their index among
            the MoE layers of the whole model.
        num_experts: the experts of a layer.
        top_k: the experts of a token.
        group: the ranks among which the experts of a layer are spread, in order: expert e is on rank e // (E/R). By
            default all ranks.
        optimizer: each of its steps ends a step of the job. Without one, call `end_step` of the result.
        chosen: returns, of the output of a router, a bool map `[tokens, experts]` or ids `[tokens, top_k]`. By default
            the first such tensor in it.
        settings: by default those of the environment: `RELIBRA_PLANNER`, `RELIBRA_JOB`.
        expert_weight_size_bytes: the size of one expert's weights, from which the time that ranks wait is estimated.

    Returns:
        The observer; its `close` takes all hooks away.

    Raises:
        InvalidInput: there is no planner, or the ranks of the group do not divide the experts.
        Unsupported: the ranks of a group are not spread evenly over machines.
    """
    keep_log()
    settings = settings or PluginSettings.read({}, os.environ, default_job="observed", may_pack=False)
    settings = embedded.resolve_planner(settings)
    by_layer = dict(routers if isinstance(routers, Mapping) else enumerate(routers))
    ep_ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (ep_ranks, max(by_layer, default=-1)))
    groups = sorted({ranks for ranks, _ in told})
    slots = _SLOTS if settings.slots is None else settings.slots
    config = AgentConfig(
        planner_address=settings.planner,
        job_id=settings.job,
        model=Model(
            num_layers=max(last for _, last in told) + 1,
            num_experts=num_experts,
            top_k=top_k,
            expert_weight_size_bytes=expert_weight_size_bytes,
        ),
        # Each pipeline stage and each part of cut experts has EP groups of its own, which count as any others.
        cluster=replace(cluster_of(gather_hosts(ep_ranks), num_ep_groups=len(groups)), redundant_slots=slots),
        attempt=shared_attempt(),
    )
    counter = ChoiceCounter(
        by_layer,
        num_layers=config.model.num_layers,
        num_experts=num_experts,
        chosen=chosen or (lambda output: chosen_experts(output, num_experts)),
        clock=clock_of(_device_of(by_layer)),
    )
    observer = Observer(counter, Session(config), Seat(ep_ranks.index(dist.get_rank()), groups.index(ep_ranks)))
    if optimizer is not None:
        observer.on_close(around_steps(optimizer, observer.mark, observer.end_step))
    if dist.get_rank() == 0:
        observer.on_close(register(config))
        log.warning(
            "relibra observes job %s: %d MoE layers of %d experts; nothing moves and no weight changes; its planner is "
            "%s",
            config.job_id,
            config.model.num_layers,
            num_experts,
            config.planner_address,
        )
    dist.barrier()  # reports of a job that is not registered would be refused
    return observer


class ObservedPasses(BalancedPasses):
    """The passes of a job that observes: none has a plan, and each step of the optimizer reports what routers chose."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def close(self, *, goes_on: bool = False) -> None:
        """Deliver the last reports, and take the observer's hooks out of the model."""
        self._observer.close()


def observe_megatron(settings: PluginSettings, layers: ModelLayers, chunks: Any, optimizer: Any) -> ObservedPasses:
    """Collective over all ranks: observe a model of megatron, for `mode=observe` of a plug-in; return its passes.

    Args:
        settings: the settings of the plug-in.
        layers: the layers of the model.
        chunks: the built model.
        optimizer: its optimizer.

    Raises:
        InvalidInput: the ranks do not divide the experts.
        Unsupported: a router is not megatron's, or the ranks of an EP group are not spread evenly over machines.
    """
    from megatron.core import parallel_state

    from relibra.agent import megatron

    chunks = [chunks] if isinstance(chunks, nn.Module) else list(chunks)
    layers_of_model = [layer for layer, _ in megatron.find_layers(chunks)]
    numbers: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(numbers, [layer.layer_number for layer in layers_of_model])
    order = sorted({number for of_rank in numbers for number in of_rank})
    described = Model(num_layers=layers.num_moe_layers, num_experts=layers.num_experts, top_k=layers.top_k)
    observer = observe(
        {order.index(layer.layer_number): megatron.router_of(layer) for layer in layers_of_model},
        num_experts=layers.num_experts,
        top_k=layers.top_k,
        group=parallel_state.get_expert_model_parallel_group(),
        optimizer=optimizer,
        settings=settings,
        expert_weight_size_bytes=measure_sizes(described, chunks, optimizer).expert_weight_size_bytes,
    )
    return ObservedPasses(observer)


def _device_of(routers: Mapping[int, nn.Module]) -> torch.device:
    parameters = (parameter for router in routers.values() for parameter in router.parameters())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
