"""The stand-ins for Transformer Engine's FusedAdam: the contract that megatron and the agent rely on."""

import pytest
import torch

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


def test_halves_of_numbers_join_to_the_same_numbers():
    numbers = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    upper, lower = split(numbers)
    assert (upper.dtype, lower.dtype) == (torch.bfloat16, torch.int16)
    assert torch.equal(joined(upper, lower), numbers)
    assert ((upper.float() - numbers).abs() <= (numbers.bfloat16().float() - numbers).abs()).all()


def test_remainders_make_bf16_weights_train_as_fp32_ones():
    adam, parameter = trained(torch.bfloat16, master_weights=True, store_param_remainders=True)
    state = adam.state[parameter]
    assert {name: each.dtype for name, each in state.items()} == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
        "master_param": torch.int16,
    }
    main = joined(parameter.data, state["master_param"])
    torch.testing.assert_close(main, reference(torch.bfloat16), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 0.01), (torch.uint8, 0.2), (torch.bfloat16, 0.02)])
def test_moments_of_few_bits_are_those_of_fp32_rounded(dtype, tolerance):
    few, many = (
        trained(torch.bfloat16, master_weights=True, exp_avg_dtype=each, exp_avg_sq_dtype=each)
        for each in (dtype, torch.float32)
    )
    got, want = (adam.get_unscaled_state(parameter, "exp_avg").float() for adam, parameter in (few, many))
    assert (got - want).abs().max() <= tolerance * want.abs().max()
    is_scaled = dtype != torch.bfloat16
    assert (few[0]._scales[few[1]]["exp_avg"].item() != 1.0) == is_scaled


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.bfloat16])
def test_a_state_dict_brings_the_state_back(dtype):
    options = {"master_weights": True, "exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype}
    adam, parameter = trained(torch.bfloat16, **options)
    other, target = trained(torch.bfloat16, steps=1, **options)
    other.load_state_dict(adam.state_dict())
    for name in adam.state[parameter]:
        want = adam.get_unscaled_state(parameter, name).float()
        assert torch.allclose(other.get_unscaled_state(target, name).float(), want, rtol=1e-3)
