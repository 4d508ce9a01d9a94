"""If a part of the agent is missing, the comparison with plain training notices, or the agent refuses to go on."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("mutation", ["no_replay", "stale_slots"])
def test_S5_the_comparison_sees(layout_run, mutation):
    assert layout_run("gpt_replicas").worst(mutation)["grad"] > 0.1


def test_S5_the_comparison_sees_recomputation_of_another_micro_batch(layout_run):
    """The losses of the first step are right, so they do not show the mutation."""
    assert layout_run("gpt_replicas").worst("confused_checkpoints")["grad"] > 0.1


def test_S5_recomputation_without_its_micro_batch_is_refused(layout_run):
    """Its losses would be right and its gradients wrong."""
    for result in layout_run("gpt_replicas").of("forgetful_checkpoints"):
        for message in result["messages"]:  # the second step has no plan, and keeps the replicas of the first
            assert "outside `agent.micro_batch(i)` while the step has replicas" in message


def test_S5_the_comparison_sees_replica_gradients_that_ddp_ignores(layout_run):
    """Kernels add to `main_grad`, so DDP ignores other gradients. The loss of the first step is still right."""
    assert layout_run("gpt_experts").worst("fused_through_autograd")["grad"] > 0.1
