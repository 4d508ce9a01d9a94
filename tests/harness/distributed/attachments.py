"""Scenarios of attaching: traces after detaching, refused forwards, and models without DDP."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed.networks import BATCH, HIDDEN, MODEL, SEQUENCE, Network, Trained, routing, transformer_config
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.distributed.scenarios import Differences, M, attached, plan_by_step
from relibra.agent import AgentConfig, Phase, attach
from relibra.errors import RelibraError
from relibra.planning import Cluster

Result = dict[str, Any]


def without_ddp(cluster: Cluster) -> Result:
    """Attach to a bare network without optimizer. Gradients of replicas must arrive in `grad`."""
    config = transformer_config(cluster, moe_enable_routing_replay=False)
    plain, balanced = (Network(config) for _ in range(2))
    balanced.load_state_dict(plain.state_dict())
    plans = ScriptedPlans(plan_by_step(cluster, dist.get_rank(), range(1), move=False))
    agent_config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    agent = attach(balanced, None, agent_config, plans=plans)
    agent.begin_step(0, Phase.UPDATE)
    for index in range(M):
        hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index))
        plain(hidden).square().sum().backward()
        with agent.micro_batch(index):
            balanced(hidden).square().sum().backward()
    agent.end_step()
    differences = Differences()
    got, want = ({name: parameter.grad for name, parameter in each.named_parameters()} for each in (balanced, plain))
    differences.note("grad", got, want)
    agent.detach()
    return {"difference": differences.of, "sent_bytes": plans.reports[0].replica_sent_bytes}


def guard(cluster: Cluster) -> Result:
    """Run forwards outside a micro-batch. In training with replicas or routing they are refused, otherwise allowed."""
    plain = Trained(cluster)
    balanced, _ = attached(cluster, plan_by_step(cluster, dist.get_rank(), range(1)))
    agent = balanced.agent
    assert agent is not None
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(3))
    differences = Differences()

    def compare() -> None:
        for each in (plain, balanced):
            each.set_routing(routing(0, 0, dist.get_rank()))
        differences.note("output", [balanced.ddp(hidden).detach()], [plain.ddp(hidden).detach()])

    def refused() -> str:
        try:
            balanced.ddp(hidden)
        except RelibraError as error:
            return str(error)
        return "not refused"

    def compare_in_eval() -> None:
        for each in (plain, balanced):
            each.network.eval()
        compare()
        for each in (plain, balanced):
            each.network.train()

    agent.begin_step(0, Phase.UPDATE)
    with_replicas = refused()
    compare_in_eval()
    agent.end_step()
    compare()
    without_plan = agent.begin_step(1, Phase.UPDATE).applied is None
    compare()
    agent.set_routing(0, routing(1, 0, dist.get_rank()))
    with_routing = refused()
    compare_in_eval()
    agent.end_step()
    compare()
    with agent.micro_batch(M + 5):
        compare()
    agent.detach()
    return {
        "difference": differences.of,
        "with_replicas": with_replicas,
        "without_plan": without_plan,
        "with_routing": with_routing,
    }


def named_as_converters_do(trained: Trained) -> Iterator[tuple[str, Tensor]]:
    """Yield names as frameworks' converters make them: the place from rank and position, its expert from the agent."""
    assert trained.agent is not None
    first = trained.agent.ep_rank * trained.network.moe[0].num_local_experts
    with trained.agent.copying() as order:
        for name, parameter in trained.network.named_parameters():
            found = re.fullmatch(r"(moe\.(\d+)\.experts\.local_experts\.)(\d+)(.*)", name)
            if found:
                before, layer, position, after = found.groups()
                name = f"{before}{order.expert_of_place_LE[int(layer), first + int(position)]}{after}"
            yield name, parameter


def detachment(cluster: Cluster) -> Result:
    """Train, reorder there and back, detach, and look for traces of the agent."""
    plain = Trained(cluster, clip_grad=0.0)
    reference = Trained(cluster, clip_grad=0.0)
    plans = {
        step: random_plans(40 + step, step, MODEL, cluster, M, replicate=False)[dist.get_rank()] for step in (0, 1)
    }
    balanced, _ = attached(cluster, plans, clip_grad=0.0)
    agent = balanced.agent
    assert agent is not None
    for step in range(2):
        agent.begin_step(step, Phase.UPDATE)
        balanced.step(step, M)
        plain.step(step, M)
        agent.end_step()
    moved = not np.array_equal(agent.home_rank_LE, cluster.identity_placement(MODEL))
    converted = {name: id(parameter) for name, parameter in named_as_converters_do(balanced)}
    named = {name: id(parameter) for name, parameter in agent.logical_named_parameters()}
    agent.detach()
    restored = np.array_equal(agent.home_rank_LE, cluster.identity_placement(MODEL))
    balanced.agent = None
    layers = list(zip(balanced.network.moe, reference.network.moe, strict=True))
    equal_state = [
        all(map(torch.equal, got.values(), want.values())) and got.keys() == want.keys()
        for got, want in (
            (balanced.weights(), plain.weights()),
            (balanced.moments(), plain.moments()),
        )
    ]
    got, want = balanced.step(2, M), plain.step(2, M)
    from megatron.core import tensor_parallel

    return {
        "moved": moved,
        "converters_agree": converted == named,
        "restored": restored,
        "bitwise_state": equal_state,
        "bitwise_step": got["loss"] == want["loss"] and all(map(torch.equal, got["dx"], want["dx"])),
        "plain_again": all(
            "preprocess" not in vars(layer)
            and "forward" not in vars(layer.experts)
            and layer.token_dispatcher.num_experts == untouched.token_dispatcher.num_experts
            for layer, untouched in layers
        ),
        "checkpoint_restored": tensor_parallel.checkpoint.__module__.startswith("megatron."),
    }
