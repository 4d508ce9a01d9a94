"""A GPT whose experts are quantised (fp8) trains under random plans as under plain megatron-core (S5).

Transformer Engine needs a GPU. Here megatron's code for it runs over a stand-in (`harness.distributed.quantized`).
"""

import pytest

from harness.distributed.layout import EP2_EDP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import torch

    from harness.distributed import checkpoints
    from harness.distributed import quantized as te
    from harness.distributed.comparison import EXPERTS, assert_active, assert_rounded, compare, rounding
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.gpt_model import HIDDEN, RECOMPUTE
    from relibra.agent import quantized
    from relibra.agent.experts import Dispatched, experts_of

    BLOCKWISE = EXPERTS["grouped_fused"] | {"fp8": "e4m3", "fp8_recipe": "blockwise", "moe_grouped_gemm": True}
    MXFP8 = BLOCKWISE | {"fp8_recipe": "mxfp8"}
    TENSORWISE = BLOCKWISE | {"fp8": "hybrid", "fp8_recipe": "tensorwise"}


def trained(cluster, experts, **options):
    with te.installed():
        return compare(cluster, sharded=True, bf16=True, experts=experts, **options)


@pytest.mark.parametrize("is_padded", [False, pytest.param(True, marks=pytest.mark.long)])
@on_ranks(EP2_EDP2)
def test_S5_fp8_differs_from_plain_megatron_as_two_plain_runs_do(cluster, is_padded):
    """With full recomputation, or with tokens of padding in the routing map, which count as no load.

    Gradients of weights are rounded together with the other tokens of a slot, so that replicas change their rounding.
    """
    if is_padded:
        got = trained(cluster, BLOCKWISE | {"moe_router_padding_for_quantization": True})
    else:
        got = trained(cluster, BLOCKWISE, **RECOMPUTE["full"])
    assert_active(got)
    with te.installed():
        assert_rounded(got, rounding(cluster, sharded=True, experts=BLOCKWISE))


@on_ranks(EP2_EDP2)
def test_S5_reorders_change_no_bit_of_fp8_training(cluster):
    """With one scale per tensor, and e5m2 gradients.

    The norm adds experts up in another order after a reorder. Clipped by it, gradients would follow its last bit.
    """
    experts = TENSORWISE | {"clip_grad": 0.0}
    got = trained(cluster, experts, plan={"replicate": False}, **RECOMPUTE["full"])
    assert min(outcome.num_moved_experts for outcome in got.outcomes) > 0
    assert got.worst.pop("grad_norm") <= 1e-6
    assert set(got.worst.values()) == {0.0}, got.worst


@on_ranks(EP2_EDP2)
def test_S5_a_replica_quantises_as_its_home_with_every_recipe(cluster):
    """Compare what an expert and its replica compute from the same tokens."""
    for options in (BLOCKWISE, MXFP8, TENSORWISE):
        layer = moe_layer(cluster, options)
        experts = experts_of(layer.experts)
        for slot in range(experts.num_home_slots):
            replica = [copy_of(parameter) for parameter in experts.parameters[slot]]
            at_home = computed(layer, experts, slot, [], experts.parameters[slot])
            elsewhere = computed(layer, experts, experts.num_home_slots, [replica], replica)
            assert float(at_home[0].float().norm()) > 0.1
            assert all(map(torch.equal, at_home, elsewhere)), (options["fp8_recipe"], slot)


def moe_layer(cluster, options):
    with te.installed():
        job = GptJob(cluster, bf16=True, **(options | {"add_bias_linear": False}))
    return next(iter(job.moe_layers.values()))


def copy_of(parameter):
    copied = parameter.detach().clone().requires_grad_()
    copied.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    return copied


def computed(layer, experts, slot, replicas, weights):
    """Return outputs, and the gradients of tokens, probabilities and `weights`, with all tokens in one slot."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(40, HIDDEN, generator=generator).bfloat16().requires_grad_()
    probs = torch.rand(40, generator=generator).requires_grad_()
    sizes = torch.zeros(experts.num_home_slots + len(replicas), dtype=torch.long)
    sizes[slot] = len(tokens)
    for weight in weights:
        weight.main_grad.zero_()
    with te.context(layer.config):
        outputs = experts.run(layer.experts.forward, Dispatched(tokens, sizes, probs), replicas)
        outputs.backward(torch.randn(outputs.shape, generator=generator).to(outputs.dtype))
    return [outputs.detach(), tokens.grad, probs.grad, *(weight.main_grad.clone() for weight in weights)]


@on_ranks(EP2_EDP2)
def test_S5_the_comparison_sees_a_replica_with_the_quantised_weights_of_another(cluster):
    """Those of the replica that was in its slot before."""
    with mock.patch.object(quantized, "forget"):
        assert trained(cluster, BLOCKWISE).worst["grad"] > 0.5


@pytest.mark.long
@on_ranks(EP2_EDP2)
def test_S5_a_checkpoint_of_fp8_training_loads_without_relibra(cluster):
    """Beside products, experts have modules that pad tokens. These know the number of products, and hold nothing."""
    with te.installed():
        checkpoints.assert_loads_without_relibra(cluster, bf16=True, **BLOCKWISE)


@on_ranks(EP2_EDP2)
def test_the_stand_in_keeps_what_transformer_engine_keeps(cluster):
    """Quantised weights until a step begins, and quantisers for as many products as at first."""
    layer = moe_layer(cluster, BLOCKWISE)
    product = layer.experts.linear_fc1
    tokens = torch.randn(16, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    splits = [16, *[0] * (product.num_gemms - 1)]
    with te.context(layer.config), torch.no_grad():
        before, _ = product(tokens, splits)
        exact = tokens.float() @ product.weight0.float().t()
        product.weight0.zero_()
        kept, _ = product(tokens, splits)
        product.is_first_microbatch = True
        renewed, _ = product(tokens, splits)
        product.num_gemms += 1
        with pytest.raises(IndexError):
            product(tokens, [*splits, 0])
    assert 0 < (before.float() - exact).norm() / exact.norm() < 0.06
    assert torch.equal(kept, before)
    assert renewed.abs().max() == 0.0
