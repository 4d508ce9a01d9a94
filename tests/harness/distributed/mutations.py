"""Scenarios that remove a part of the agent. The comparison with plain training must notice."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from harness.distributed.gpt_model import RECOMPUTE
from harness.distributed.matrix import EXPERTS, STEPS, balanced_job, compare
from relibra.agent import Agent, Phase
from relibra.agent.cells.gradient_return import GradientReturn
from relibra.agent.cells.micro_batch import current_of_any, running
from relibra.agent.cells.visit import Visit
from relibra.agent.megatron import hooks
from relibra.errors import RelibraError
from relibra.planning import Cluster

Result = dict[str, Any]
WAY: dict[str, Any] = {"sharded": False, "bf16": False}


def no_replay(cluster: Cluster) -> Result:
    """Let routers decide instead of following the routing of the micro-batch."""
    with mock.patch.object(Agent, "set_routing"):
        return compare(cluster, **WAY)


def forgetful_checkpoints(cluster: Cluster) -> Result:
    """Let recomputations forget their micro-batch. The agent must refuse before any exchange, even without a plan."""
    job, _ = balanced_job(cluster, **RECOMPUTE["full"])
    assert job.agent is not None
    messages = []
    with mock.patch.object(hooks, "current_of_any", return_value=None):
        for step in (0, STEPS):
            job.agent.begin_step(step, Phase.UPDATE)
            try:
                job.run(step, 1)
            except RelibraError as error:
                messages.append(str(error))
            job.agent.end_step()
    job.agent.detach()
    return {"messages": messages}


def confused_checkpoints(cluster: Cluster) -> Result:
    """Let recomputations use the plan and routing of another micro-batch."""

    def other(function: Callable[..., Any], *args: Any) -> Any:
        own = current_of_any()
        assert own is not None
        index = (own.index + 1) % own.cells.num_micro_batches
        experts = own.owner.open.given_experts[index]
        confused = dataclasses.replace(own, index=index, given_experts=experts, is_checkpointed=True)

        def run(*run_args: Any) -> Any:
            with running(confused if torch.is_grad_enabled() else own):
                return function(*run_args)

        return hooks._plain_checkpoint(run, *args)

    with mock.patch.object(hooks, "_checkpoint", other):
        return compare(cluster, **WAY, **RECOMPUTE["full"])


def stale_slots(cluster: Cluster) -> Result:
    """Let a backward use the weights that the last forward left in its slots."""
    with mock.patch.object(Visit, "fetch_again"):
        return compare(cluster, **WAY)


def fused_through_autograd(cluster: Cluster) -> Result:
    """Return gradients of replicas through autograd to parameters whose own gradients kernels add to `main_grad`."""
    plain = GradientReturn.add_up

    def add_up(self: GradientReturn, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        held = [parameter.main_grad for parameter in parameters]
        for parameter in parameters:
            parameter.main_grad = None
        rest = plain(self, parameters)
        for parameter, main_grad in zip(parameters, held, strict=True):
            parameter.main_grad = main_grad
        return rest

    with mock.patch.object(GradientReturn, "add_up", add_up):
        return compare(cluster, **WAY, experts=EXPERTS["fused"])


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    each.__name__: each for each in (no_replay, confused_checkpoints, stale_slots, forgetful_checkpoints)
}
EXPERTS_SCENARIOS = {"fused_through_autograd": fused_through_autograd}
