"""MoE layers of every kind train as under plain megatron-core: predictors, in models with vision, with adapters (S5)."""

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


@pytest.mark.parametrize(
    ("layout", "mutation", "kind"),
    [
        ("layers_ep4", "prediction_named_by_place", "weights"),
        ("layers_ep2_edp2", "without_shared_experts", "grad"),
        ("layers_ep2_edp2", "adapters_left_behind", "grad"),
    ],
)
def test_S5_the_comparison_sees(layout_run, layout, mutation, kind):
    assert layout_run(layout).worst(mutation)[kind] > 0.1
