"""`attach`: hook an agent into a built model, on all ranks or on none."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.agent.agent import Agent
from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.gradient_return import GradientReturns
from relibra.agent.cells.pass_order import PassOrder
from relibra.agent.cells.slots import Slots
from relibra.agent.cells.token_split import TokenSplit
from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.config import AgentConfig
from relibra.agent.connection import connect
from relibra.agent.expert_sizes import ExpertSizes
from relibra.agent.experts import Experts, experts_of, require_gradients
from relibra.agent.groups import Groups, Member, Topology
from relibra.agent.homes.by_place import PlaceNames
from relibra.agent.homes.guard import WeightGuard
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.optimizer_state import OptimizerState
from relibra.agent.homes.optimizer_steps import around_steps
from relibra.agent.needed import advice_on_exports, advice_on_version, check_instances, check_needs
from relibra.agent.plans.agreement import together
from relibra.agent.plans.plan_source import PlanSource
from relibra.agent.plans.session import Session
from relibra.agent.plans.shared_attempt import agree_on_token, own_token
from relibra.agent.plans.stopwatch import clock_of, host_clock
from relibra.agent.readers import watch_readers
from relibra.agent.refusals import replay_obstacle
from relibra.errors import InvalidInput, RelibraError
from relibra.planning.places import Placement
from relibra.wire.launch import process_name

log = logging.getLogger(__name__)


def attach(
    model_chunks: nn.Module | Sequence[nn.Module],
    optimizer: Any,
    config: AgentConfig,
    *,
    plans: PlanSource | None = None,
    clock: Callable[[], float] | None = None,
) -> Agent:
    """Collective over all ranks: hook an agent into a built model, and return it.

    Args:
        model_chunks: the built module, with or without its DDP wrapper, or the list of the model chunks of this
            pipeline stage. Experts must be at their original places (identity placement).
        optimizer: the megatron or torch optimizer of the model; None if there is no optimizer state to move.
        config: settings of the agent, equal on all ranks.
        plans: where plans come from; by default the planner that `config` names.
        clock: returns seconds, by which steps are measured; by default the clock of the device that has the experts.

    Raises:
        InvalidInput: `config` does not describe this model, or ranks differ in its job, model, cluster, transport,
            `host_copy`, `homes_stay`, `guard` or times, or were given different tokens of their launch.
        Unsupported: the agent cannot execute the model or optimizer as configured; the message names an alternative.
        RelibraError: attaching failed for another reason on some rank.

    If one rank raises, all ranks raise and every model stays as it was.
    """
    chunks = [model_chunks] if isinstance(model_chunks, nn.Module) else list(model_chunks)
    refusal: Exception | None = None
    moe_layers, held, unplanned = list[tuple[Any, nn.Module]](), list[Experts](), list[Experts]()
    member, state, models = Member((), (), ()), OptimizerState([]), list[nn.Module]()
    try:
        check_needs()
        from relibra.agent import megatron  # imports what the check names, if it is missing

        models = [megatron.unwrap(chunk) for chunk in chunks]
        moe_layers = megatron.find_layers(chunks)
        layers = [layer for layer, _ in moe_layers]
        check_instances([*megatron.parts(chunks, layers), *megatron.optimizer_parts(optimizer)])
        for layer, _ in moe_layers:
            megatron.check_layer(layer, config.model, config.cluster, homes_stay=config.homes_stay)
        state = megatron.optimizer_state(optimizer)
        held = [experts_of(layer.experts) for layer in layers]
        unplanned = [experts_of(layer.experts) for layer in megatron.layers_without_plans(chunks)]
        for of_layer in held:
            state.check_scales(of_layer.parameters)
        ep_ranks, edp_ranks, etp_rank = megatron.expert_groups(layers)
        member = Member(tuple(ep_ranks), tuple(edp_ranks), tuple(layer.layer_number for layer in layers), etp_rank)
    except Exception as error:  # any error: the other ranks must learn of it and not wait for this rank
        refusal = error
    members, token = _exchange(member, config, refusal)
    topology = Topology.of(members, config)
    groups = Groups.create(topology, config)
    with ExitStack() as hooks:
        hooks.callback(groups.close)
        sizes = ExpertSizes.of((slot for experts in held for slot in experts.parameters), state.bytes_per_element)
        model, advice = sizes.fill(config.model)
        if (groups.stage_index, groups.seat.ep_group, groups.seat.ep_rank) == (0, 0, 0):
            of_exports = None if config.homes_stay else advice_on_exports()
            for line in filter(None, (advice, advice_on_version(megatron.version), of_exports, config.advice)):
                log.warning(line)
        config = replace(config, model=model)
        indices = topology.stage_layers[groups.stage_index]
        by_index = dict(zip(indices, moe_layers, strict=True))
        experts = dict(zip(indices, held, strict=True))
        device = next(parameter for model in models for parameter in model.parameters()).device
        original = Placement.identity(config.model, config.cluster)
        homes = Homes(
            original,
            experts,
            state,
            groups,
            device,
            gather_parameters=lambda: megatron.gather_parameters(chunks),
            buffer_bytes=config.reorder_buffer_bytes,
        )
        timed, host_copy = connect(config, groups, experts, device)
        of_chunks = [[index for index, (_, chunk) in by_index.items() if chunk is each] for each in chunks]
        stage, num_stages = groups.pipeline.index(dist.get_rank()), len(groups.pipeline)
        order = PassOrder(of_chunks, stage, num_stages, sees_optimizer=optimizer is not None)
        is_trained = any(require_gradients(experts.parameters[0]) for experts in held)
        is_fused = is_trained and any(layer.config.gradient_accumulation_fusion for layer, _ in moe_layers)
        waits = {index: megatron.gathering(chunk, layer.experts) for index, (layer, chunk) in by_index.items()}
        gathered = {index: wait for index, wait in waits.items() if wait is not None}
        source = plans or Session(config, token)
        attached: list[Agent] = []

        def hook_in() -> None:
            # First, because memory of the transport is collective, and no rank may raise before it.
            num_slots = config.cluster.redundant_slots
            slots = Slots(experts, num_slots, device, with_gradients=is_fused, memory=timed.memory)
            arrivals = Arrivals(timed, experts.values(), num_slots, slots.gradient_dtype, device)
            guard = WeightGuard(experts, state, device, lambda: homes.has_moved)
            places = PlaceNames(homes, guard, original)
            agent = Agent(
                config=config,
                models=models,
                experts=experts,
                unplanned=unplanned,
                homes=homes,
                guard=guard,
                places=places,
                groups=groups,
                plans=source,
                context=ReplicaContext(
                    transport=timed,
                    slots=slots,
                    fetcher=Fetcher(timed, slots, experts, gathered, host_copy),
                    returns=GradientReturns(timed, arrivals),
                    split=TokenSplit(lambda: groups.ep, groups.seat.ep_rank, config.cluster.gpus_per_node),
                    order=order,
                ),
                reduces_early=config.cluster.num_ep_groups > 1 and any(map(megatron.reduces_early, chunks)),
                replay_obstacle=lambda: next(
                    filter(None, (replay_obstacle(layer.config, megatron.router_of(layer)) for layer, _ in moe_layers)),
                    None,
                ),
                device=device,
                clock=clock_of(device) if clock is None else host_clock(clock),
            )
            for index, (layer, chunk) in by_index.items():
                hooks.callback(megatron.install(layer, chunk, agent.layers[index], config.cluster))
            if not config.homes_stay:
                for index, (layer, _) in by_index.items():
                    hooks.callback(megatron.store_by_expert(layer, agent.layers[index]))
                hooks.callback(watch_readers(chunks, optimizer, [layer for layer, _ in moe_layers], places, homes))
            if optimizer is not None:
                hooks.callback(around_steps(optimizer, agent.check_before_training, guard.note_trained))
                guard.sees_optimizer = True
            attached.append(agent)

        failure = together(hook_in, "attaching", groups.everyone)
        if failure is not None:
            raise RelibraError(failure)
        (agent,) = attached
        agent.hook(hooks.pop_all().close)
    return agent


def _exchange(member: Member, config: AgentConfig, refusal: Exception | None) -> tuple[list[Member], str]:
    """Collective over all ranks: return all members and the token of the launch, unless a rank refuses or differs."""
    # Other ranks may be unable to unpickle an error that is not relibra's own.
    is_own = refusal is None or isinstance(refusal, RelibraError)
    refused = refusal if is_own else RelibraError(f"{type(refusal).__name__}: {refusal}")
    mine = member, config, refused, own_token(config.attempt), process_name()
    told: list[Any] = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    if refusal is not None:
        raise refusal
    for rank, (_, _, of_other, *_) in enumerate(told):
        if of_other is not None:
            raise type(of_other)(f"{of_other} (on rank {rank})")
    first = told[0][1]
    for rank, (_, other, *_) in enumerate(told):
        for field in (
            "job_id",
            "model",
            "cluster",
            "transport",
            "host_copy",
            "homes_stay",
            "guard",
            "plan_timeout_s",
            "collective_timeout_s",
        ):
            expected, got = getattr(first, field), getattr(other, field)
            if expected != got:
                raise InvalidInput.of(
                    field, expected=f"{expected} on all ranks, as on rank 0", got=f"{got} on rank {rank}"
                )
    token = agree_on_token([token for *_, token, _ in told], name_of_first=told[0][-1])
    return [first for first, *_ in told], token
