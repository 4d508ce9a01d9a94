"""Attaching, detaching, and what is refused."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_detaching_leaves_the_plain_model_bitwise(two_nodes):
    for result in two_nodes.of("detachment"):
        assert result["moved"]
        assert result["restored"]
        assert result["plain_again"]
        assert result["checkpoint_restored"]
        assert result["bitwise_state"] == [True, True]
        assert result["bitwise_step"]


def test_S5_a_training_forward_outside_a_micro_batch_is_refused(two_nodes):
    for result in two_nodes.of("guard"):
        assert "outside `agent.micro_batch(i)` while the step has replicas" in result["message"]


def test_forwards_without_replicas_need_no_micro_batch(two_nodes):
    assert max(two_nodes.worst("guard").values()) <= 1e-6


@pytest.mark.parametrize(
    ("case", "message", "alternative"),
    [
        ("allgather", "moe_token_dispatcher_type='allgather'", "'alltoall'"),
        ("moe_router_fusion", "ignores routing replay", "moe_router_fusion=False"),
        ("overlap_moe_expert_parallel_comm", "=True", "overlap_moe_expert_parallel_comm=False"),
        ("delay_wgrad_compute", "=True", "delay_wgrad_compute=False"),
        ("moe_shared_expert_overlap", "=True", "moe_shared_expert_overlap=False"),
        ("moe_apply_probs_on_input", "=True", "moe_apply_probs_on_input=False"),
        ("moe_expert_capacity_factor", "dropping tokens", "moe_expert_capacity_factor=None"),
        ("fp8", "fp8 and fp4 experts", "bf16 or fp32"),
        ("cuda_graph_impl", "CUDA graph over MoE layers", "cuda_graph_scope='attn'"),
    ],
)
def test_what_cannot_be_executed_is_refused_with_the_alternative(two_nodes, case, message, alternative):
    for result in two_nodes.of("refusals"):
        text = result["messages"][case]
        assert text.startswith("Unsupported: ")
        assert message in text
        assert alternative in text.split("; use ")[-1]


@pytest.mark.parametrize(("case", "field"), [("num_layers", "model.num_layers"), ("ranks", "cluster (num_nodes")])
def test_a_config_that_describes_another_model_is_refused(two_nodes, case, field):
    for result in two_nodes.of("refusals"):
        assert result["messages"][case].startswith(f"InvalidInput: {field}")
