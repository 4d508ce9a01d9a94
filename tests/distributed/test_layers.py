"""MoE layers of every kind train as under plain megatron-core: predictors, inside other models, with adapters (S5)."""

import re

import pytest

from harness.distributed.activity import TOLERANCE, assert_active

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("layout", "scenario"),
    [
        ("layers_ep2_vpp", "prediction"),
        ("layers_ep4", "prediction_with_vision"),
        ("layers_ep2_edp2", "shared_experts_overlapped"),
        ("layers_ep2_edp2", "latent"),
        ("layers_ep2_edp2", "dense_adapters"),
        ("layers_ep2_edp2", "expert_adapters"),
    ],
)
def test_S5_the_layers_train_as_plain_megatron(layout_run, layout, scenario):
    run = layout_run(layout)
    assert_active(run.of(scenario))
    worst = run.worst(scenario)
    assert worst.keys() == {"loss", "grad", "grad_norm", "moments", "weights", "expert_bias"}
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_the_comparison_sees_shared_experts_that_a_dispatcher_leaves_out(layout_run):
    assert layout_run("layers_ep2_edp2").worst("without_shared_experts")["grad"] > 0.1


@pytest.mark.parametrize(
    ("layout", "mutation", "name"),
    [
        ("layers_ep4", "prediction_named_by_place", r"mtp\.layers\.0\.\w+\.mlp\.experts\.local_experts\."),
        ("layers_ep2_edp2", "adapters_left_behind", r"\.linear_fc1\.adapter\.linear_in\.weight"),
    ],
)
def test_S5_the_comparison_sees_what_has_the_name_of_another_expert(layout_run, layout, mutation, name):
    for result in layout_run(layout).of(mutation):
        assert re.search(name, result["noticed"])


def test_S5_layers_with_graphs_of_attention_and_dense_mlps_train_as_plain_megatron(layout_run):
    run = layout_run("graphs_ep4")
    assert_active(run.of("graphed"))
    assert all(result["hooks_in_graphs"] == [] for result in run.of("graphed"))
    worst = run.worst("graphed")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_graphs_that_are_refused_would_capture_hooks_of_the_agent(layout_run):
    for result in layout_run("graphs_ep4").of("hooks_in_captures"):
        assert result["found"] == {
            "attn": [],
            "attn,moe_router": ["routing"],
            "attn,moe_router,moe_preprocess": ["remap", "routing"],
            "the whole layer": ["compute", "remap", "routing"],
        }


def test_layers_have_no_entrance_hooks_which_would_forbid_their_capture(layout_run):
    assert [result["num_entrances"] for result in layout_run("graphs_ep4").of("hooks_in_captures")] == [0] * 4
