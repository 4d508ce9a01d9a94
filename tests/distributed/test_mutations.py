"""If a part of the agent is missing, the comparison with plain training notices, or the agent refuses to go on."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import dataclasses
    from unittest import mock

    import torch

    from harness.distributed.comparison import EXPERTS, STEPS, balanced_job, compare
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.observed import refusal
    from relibra.agent import Agent, Phase
    from relibra.agent.cells.gradient_return import GradientReturn
    from relibra.agent.cells.micro_batch import current_of_any, running
    from relibra.agent.cells.visit import Visit
    from relibra.agent.megatron import hooks

WAY = {"sharded": False, "bf16": False}


@on_ranks(EP4)
def test_S5_the_comparison_sees_routers_that_do_not_follow_the_routing_of_their_micro_batch(cluster):
    with mock.patch.object(Agent, "set_routing"):
        assert compare(cluster, **WAY).worst["grad"] > 0.1


@pytest.mark.long
@pytest.mark.parametrize("native", [False, True], ids=["replayed", "routers_decide"])
@on_ranks(EP4)
def test_S5_the_comparison_sees_backwards_with_the_weights_that_the_last_forward_left_in_its_slots(cluster, native):
    with mock.patch.object(Visit, "fetch_again"):
        assert compare(cluster, **WAY, experts={"native": native}).worst["grad"] > 0.1


@pytest.mark.long
@on_ranks(EP4)
def test_S5_the_comparison_sees_recomputation_of_another_micro_batch(cluster):
    """The losses of the first step are right, so they do not show the mutation."""

    def other(function, *args):
        own = current_of_any()
        index = (own.index + 1) % own.cells.num_micro_batches
        experts = own.owner.open.given_experts[index]
        confused = dataclasses.replace(own, index=index, given_experts=experts, is_checkpointed=True)

        def run(*run_args):
            with running(confused if torch.is_grad_enabled() else own):
                return function(*run_args)

        return hooks._plain_checkpoint(run, *args)

    with mock.patch.object(hooks, "_checkpoint", other):
        assert compare(cluster, **WAY, **RECOMPUTE["full"]).worst["grad"] > 0.1


@on_ranks(EP4)
def test_S5_recomputation_without_its_micro_batch_is_refused(cluster):
    """Its losses would be right and its gradients wrong. The agent refuses before any exchange."""
    job, _ = balanced_job(cluster, **RECOMPUTE["full"])
    with mock.patch.object(hooks, "current_of_any", return_value=None):
        for step in (0, STEPS):  # the second step has no plan, and keeps the replicas of the first
            job.agent.begin_step(step, Phase.UPDATE)
            refused = refusal(lambda step=step: job.run(step, 1))
            assert "outside `agent.micro_batch(i)` while the step has replicas" in refused
            job.agent.end_step()
    job.agent.detach()


@pytest.mark.long
@pytest.mark.parametrize("native", [False, True], ids=["replayed", "routers_decide"])
@on_ranks(EP2_EDP2)
def test_S5_the_comparison_sees_replica_gradients_that_ddp_ignores(cluster, native):
    """Kernels add to `main_grad`, so DDP ignores gradients that replicas return through autograd.

    The loss of the first step is still right.
    """
    plain = GradientReturn.add_up

    def add_up(self, parameters):
        held = [parameter.main_grad for parameter in parameters]
        for parameter in parameters:
            parameter.main_grad = None
        rest = plain(self, parameters)
        for parameter, main_grad in zip(parameters, held, strict=True):
            parameter.main_grad = main_grad
        return rest

    with mock.patch.object(GradientReturn, "add_up", add_up):
        assert compare(cluster, **WAY, experts=EXPERTS["fused"] | {"native": native}).worst["grad"] > 0.1
