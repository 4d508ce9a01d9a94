"""A GPT whose experts are quantised (fp8) trains under random plans as under plain megatron-core (S5).

Transformer Engine needs a GPU. Here megatron's code for it runs over a stand-in (`harness.distributed.quantized`).
"""

import pytest

from harness.distributed.activity import assert_active

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("scenario", ["blockwise", "padded"])
def test_S5_fp8_differs_from_plain_megatron_as_two_plain_runs_do(layout_run, scenario):
    """With full recomputation, and with tokens of padding in the routing map, which count as no load.

    Gradients of weights are rounded together with the other tokens of a slot, so that replicas change their rounding.
    """
    run = layout_run("gpt_fp8")
    assert_active(run.of(scenario))
    worst, rounding = run.worst(scenario), run.worst("blockwise_rounding")
    for kind in ("grad", "grad_norm", "moments", "weights"):
        assert 0 < worst[kind] <= rounding[kind] / 4, (kind, worst[kind], rounding[kind])
    assert worst["expert_bias"] == 0
    assert worst["loss"] <= 2e-3


def test_S5_reorders_change_no_bit_of_fp8_training(layout_run):
    """With one scale per tensor, and e5m2 gradients."""
    run = layout_run("gpt_fp8")
    assert all(min(result["moved_experts"]) > 0 for result in run.of("tensorwise_reorders"))
    worst = run.worst("tensorwise_reorders")
    assert worst.pop("grad_norm") <= 1e-6
    assert set(worst.values()) == {0.0}, worst


def test_S5_a_replica_quantises_as_its_home_with_every_recipe(layout_run):
    for result in layout_run("gpt_fp8").of("same_bits"):
        assert result["differing"] == []
        assert result["smallest_norm"] > 0.1


def test_S5_the_comparison_sees_a_replica_with_the_quantised_weights_of_another(layout_run):
    assert layout_run("gpt_fp8").worst("quantised_for_another")["grad"] > 0.5


def test_S5_a_checkpoint_of_fp8_training_loads_without_relibra(layout_run):
    """Beside products, experts have modules that pad tokens. These know the number of products, and hold nothing."""
    assert len(layout_run("gpt_fp8").of("checkpoint")) == 4


def test_the_stand_in_keeps_what_transformer_engine_keeps(layout_run):
    """Quantised weights until a step begins, and quantisers for as many products as at first."""
    for result in layout_run("gpt_fp8").of("contract"):
        assert 0 < result["relative_error"] < 0.06
        assert result["keeps_weights"]
        assert result["largest_renewed"] == 0.0
        assert result["lack"] == "quantisers"
