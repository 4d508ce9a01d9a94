"""The stand-ins for Transformer Engine's FusedAdam and fp8: the contract that megatron and the agent rely on."""

import pytest

from harness.distributed.layout import ONE_RANK
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import torch

    from harness.distributed.fp8_rounding import E4M3, E5M2, Quantizer
    from harness.distributed.fused_adam import FusedAdam, joined, split

N = 64


def trained(dtype, steps=5, **options):
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(N, generator=generator).to(dtype))
    adam = FusedAdam([parameter], lr=0.01, weight_decay=0.1, use_decoupled_grad=True, **options)
    for _ in range(steps):
        parameter.decoupled_grad = torch.randn(N, generator=generator)
        adam.step()
    return adam, parameter


def reference(dtype, steps=5):
    """Return fp32 weights that torch's Adam makes from the same numbers."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(N, generator=generator).to(dtype).float())
    adam = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1)
    for _ in range(steps):
        parameter.grad = torch.randn(N, generator=generator)
        adam.step()
    return parameter.detach()


@on_ranks(ONE_RANK)
def test_halves_of_numbers_join_to_the_same_numbers(cluster):
    numbers = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    upper, lower = split(numbers)
    assert (upper.dtype, lower.dtype) == (torch.bfloat16, torch.int16)
    assert torch.equal(joined(upper, lower), numbers)
    assert ((upper.float() - numbers).abs() <= (numbers.bfloat16().float() - numbers).abs()).all()


@on_ranks(ONE_RANK)
def test_remainders_make_bf16_weights_train_as_fp32_ones(cluster):
    adam, parameter = trained(torch.bfloat16, master_weights=True, store_param_remainders=True)
    state = adam.state[parameter]
    assert {name: each.dtype for name, each in state.items()} == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
        "master_param": torch.int16,
    }
    main = joined(parameter.data, state["master_param"])
    torch.testing.assert_close(main, reference(torch.bfloat16), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "tolerance"), [("float16", 0.01), ("uint8", 0.2), ("bfloat16", 0.02)])
@on_ranks(ONE_RANK)
def test_moments_of_few_bits_are_those_of_fp32_rounded(cluster, name, tolerance):
    dtype = getattr(torch, name)
    few, many = (
        trained(torch.bfloat16, master_weights=True, exp_avg_dtype=each, exp_avg_sq_dtype=each)
        for each in (dtype, torch.float32)
    )
    got, want = (adam.get_unscaled_state(parameter, "exp_avg").float() for adam, parameter in (few, many))
    assert (got - want).abs().max() <= tolerance * want.abs().max()
    is_scaled = dtype != torch.bfloat16
    assert (few[0]._scales[few[1]]["exp_avg"].item() != 1.0) == is_scaled


@pytest.mark.parametrize("name", ["float16", "uint8", "bfloat16"])
@on_ranks(ONE_RANK)
def test_a_state_dict_brings_the_state_back(cluster, name):
    options = {"master_weights": True} | dict.fromkeys(("exp_avg_dtype", "exp_avg_sq_dtype"), getattr(torch, name))
    adam, parameter = trained(torch.bfloat16, **options)
    other, target = trained(torch.bfloat16, steps=1, **options)
    other.load_state_dict(adam.state_dict())
    for name in adam.state[parameter]:
        want = adam.get_unscaled_state(parameter, name).float()
        assert torch.allclose(other.get_unscaled_state(target, name).float(), want, rtol=1e-3)


@pytest.mark.parametrize(("recipe", "width"), [("blockwise", 128), ("mxfp8", 32), ("tensorwise", None)])
@pytest.mark.parametrize(("mantissa_bits", "tolerance"), [(3, 2**-4), (2, 2**-3)])
@on_ranks(ONE_RANK)
def test_fp8_rounds_the_elements_that_share_a_scale_together(cluster, recipe, width, mantissa_bits, tolerance):
    dtype = {3: E4M3, 2: E5M2}[mantissa_bits]
    generator = torch.Generator().manual_seed(0)
    tensor = (1 + torch.rand(40, 200, generator=generator)) * torch.tensor([1.0, -1.0]).repeat(100)
    quantizer = Quantizer(recipe, dtype, is_weight=False)
    for rounded, of in ((quantizer.rowwise(tensor), tensor), (quantizer.columnwise(tensor.T).T, tensor)):
        assert ((rounded - of).abs() <= tolerance * of.abs()).all()
        assert not torch.equal(rounded, of)
    with_outlier = tensor.clone()
    with_outlier[0, 0] = 1e20
    differs = (quantizer.rowwise(with_outlier) != quantizer.rowwise(tensor)).nonzero()
    assert len(differs) == tensor.numel() if width is None else bool((differs[:, 0] == 0).all())
    if width is not None:
        assert differs[:, 1].max() == min(width, 200) - 1


@on_ranks(ONE_RANK)
def test_weights_of_blockwise_scaling_round_alike_for_both_products(cluster):
    weight = torch.randn(150, 140, generator=torch.Generator().manual_seed(0))
    quantizer = Quantizer("blockwise", E4M3, is_weight=True)
    assert torch.equal(quantizer.rowwise(weight), quantizer.columnwise(weight))
