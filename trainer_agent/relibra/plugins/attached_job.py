"""A job with an agent inside, put together from what megatron itself knows: layout, machines, sizes of experts."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from relibra.agent import AgentConfig, attach, shared_attempt
from relibra.agent.config import Transport
from relibra.agent.expert_times import ExpertTimes
from relibra.agent.link_rates import LinkRates
from relibra.errors import Unsupported
from relibra.planning import Model
from relibra.plugins import embedded
from relibra.plugins.activation_memory import activation_memory, with_budget
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.host_copy import keep_host_copy
from relibra.plugins.kept_log import keep_log
from relibra.plugins.model_sizes import measure_sizes
from relibra.plugins.nodes import cluster_of, gather_hosts
from relibra.plugins.observed_job import observe_megatron
from relibra.plugins.plan_params import config_of, homes_stay, plan_params
from relibra.plugins.planned_passes import PlannedPasses
from relibra.plugins.rollout_job import RolloutJob, publish
from relibra.plugins.settings import Mode, PluginSettings
from relibra.plugins.slots import least_free_bytes, slots_that_fit
from relibra.routing import ModelLayers
from relibra.steps.parallel_layout import ParallelLayout

log = logging.getLogger(__name__)

_FAULTY_RESTORE = ("0.16.", "0.17.")
"""Versions of megatron-core that restore two copies of the word embedding wrongly."""
_HOMES_STAY = (
    "relibra leaves every expert of job %s at its place: checkpoints, exports and all other readers of weights are the "
    "framework's own"
)
_HOMES_MOVE = (
    "relibra moves experts of job %s to other ranks: checkpoints store optimizer state as fully_reshardable, under the "
    "names of experts, which takes more host memory at a save, or with megatron's "
    "distrib_optim_fully_reshardable_mem_efficient more time; exports give experts their own names, or bring them to "
    "their original places first. With reorder=never all of this stays as the framework has it, and nodes are not "
    "balanced against each other"
)


def attach_job(
    settings: PluginSettings,
    layers: ModelLayers,
    chunks: nn.Module | Sequence[nn.Module],
    optimizer: Any,
    *,
    beside: str = "",
    moves: bool = True,
    unplanned: Sequence[str] = (),
    next_index: int = 0,
) -> BalancedPasses:
    """Collective over all ranks: attach an agent to the model of a job, and register the job; return its passes.

    A model beside the policy, as a critic, is a job of its own at the same planner. A job that is refused is not
    registered. A planner that is away is no error: the job trains without plans until the planner is back. An embedded
    planner is started first.

    A job that observes gets no agent: what its policy routes is counted, and other models stay as they are.

    Args:
        settings: the settings of the plug-in.
        layers: the layers of the model.
        chunks: the built model.
        optimizer: its optimizer; None for a model that does not train.
        beside: what the model is, such as "critic", if it is not the policy. Its job has this at the end of its name.
        moves: whether experts may move, if the settings let them.
        unplanned: the other models of the job, such as "the critic", whose passes have no plan; the log names them.
        next_index: the number of the first pass.

    Raises:
        InvalidInput: the layers do not describe this model.
        Unsupported: the agent cannot execute the model, the optimizer or the layout of the ranks.
        Unavailable: the embedded planner did not start, or a rank cannot reach it.
        RelibraError: attaching failed for another reason on some rank.
    """
    from megatron import core
    from megatron.core import parallel_state

    if settings.mode is Mode.OBSERVE:
        return BalancedPasses() if beside else observe_megatron(settings, layers, chunks, optimizer)
    keep_log()
    settings = embedded.resolve_planner(settings)
    if beside:
        settings = settings.beside(beside)
    if not moves:
        settings = replace(settings, reorder="never")
    cluster = cluster_of(
        gather_hosts(dist.get_process_group_ranks(parallel_state.get_expert_model_parallel_group())),
        num_ep_groups=parallel_state.get_expert_data_parallel_world_size(),
    )
    described = Model(num_layers=layers.num_moe_layers, num_experts=layers.num_experts, top_k=layers.top_k)
    chunks = [chunks] if isinstance(chunks, nn.Module) else chunks
    model = measure_sizes(described, chunks, optimizer)
    slots, why = settings.slots, "as configured"
    if slots is None:
        slots, why = slots_that_fit(model.expert_weight_size_bytes, cluster.gpus_per_node, least_free_bytes())
    cluster = replace(cluster, redundant_slots=slots)
    attempt = shared_attempt()
    agent_config = AgentConfig(
        planner_address=settings.planner,
        job_id=settings.job,
        model=model,
        cluster=cluster,
        plan_timeout_s=settings.plan_timeout_s,
        guard=settings.guard,
        attempt=attempt,
        transport=transport_of(settings, has_gpu=torch.cuda.is_available()),
        host_copy=settings.host_copy is True,
        homes_stay=homes_stay(settings, cluster),
    )
    if not agent_config.homes_stay:
        stages = parallel_state.get_pipeline_model_parallel_world_size()
        check_restores(core.__version__, num_stages=stages, num_predictors=config_of(chunks).mtp_num_layers or 0)
    agent = attach(chunks, optimizer, agent_config)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    links, times = (LinkRates(), ExpertTimes()) if gpu is None else agent.measure_speeds()
    params, whose = plan_params(settings, model, cluster, config_of(chunks), gpu, links, times)
    host_copy = keep_host_copy(agent, model, cluster, params.cost, links, settings.host_copy)
    if optimizer is not None:  # without one there is no backward, and nothing is kept
        memory = activation_memory(config_of(chunks), chunks)
        params = replace(params, memory=with_budget(memory, settings.memory_budget_gib, least_free_bytes()))
    planned = PlannedPasses(
        settings,
        model,
        cluster,
        ep_group=agent.ep_group,
        ep_rank=agent.ep_rank,
        is_reporting=not (
            parallel_state.get_tensor_model_parallel_rank()
            or parallel_state.get_context_parallel_rank()
            or parallel_state.get_pipeline_model_parallel_rank()
        ),
        attempt=attempt,
        params=params,
    )
    planned.register()
    if dist.get_rank() == 0:
        if not beside:
            publish(RolloutJob(planner=settings.planner, job=settings.job, attempt=attempt, layers=layers))
        log.warning(
            "relibra balances job %s: %d MoE layers of %d experts, EP groups: %d of %d nodes with %d ranks, %d "
            "redundant slots per rank (%s), %s; the prices of its plans are %s; its planner is %s",
            settings.job,
            model.num_layers,
            model.num_experts,
            cluster.num_ep_groups,
            cluster.num_nodes,
            cluster.gpus_per_node,
            cluster.redundant_slots,
            why,
            host_copy,
            whose,
            settings.planner,
        )
        log.warning(_HOMES_STAY if agent.homes_stay else _HOMES_MOVE, settings.job)
        if unplanned:
            log.warning(
                "relibra plans no pass of %s of job %s: each of these models routes for itself, and runs as without "
                "relibra",
                ", ".join(unplanned),
                settings.job,
            )
    return BalancedPasses(agent, planned, layers, next_index=next_index)


def check_restores(version: str, *, num_stages: int, num_predictors: int) -> None:
    """Check that this megatron-core restores the checkpoints of a job whose experts move.

    Raises:
        Unsupported: the two copies of the word embedding would come back wrong.
    """
    if num_stages > 1 and num_predictors and version.startswith(_FAULTY_RESTORE):
        raise Unsupported(
            f"megatron-core {version} restores the word embedding wrongly from a fully_reshardable checkpoint, which "
            "moved experts need, with multi-token prediction and pipeline stages; set reorder=never, which keeps the "
            "framework's own format, or use megatron-core 0.18 or newer"
        )


def transport_of(settings: PluginSettings, *, has_gpu: bool) -> Transport:
    """Return the transport to ask for. `attach` finds out whether GPUs can have symmetric memory."""
    match settings.transport:
        case "symmetric" | "process_group" as chosen:
            return chosen
        case _:
            return "symmetric_if_possible" if has_gpu else "process_group"


def parallel_layout() -> ParallelLayout:
    """Return the ranks of a pipeline stage, for drivers that deal sequences to them."""
    from megatron.core import parallel_state

    return ParallelLayout(
        data=parallel_state.get_data_parallel_world_size(),
        context=parallel_state.get_context_parallel_world_size(),
        tensor=parallel_state.get_tensor_model_parallel_world_size(),
        expert=parallel_state.get_expert_model_parallel_world_size(),
        expert_tensor=parallel_state.get_expert_tensor_parallel_world_size(),
    )
