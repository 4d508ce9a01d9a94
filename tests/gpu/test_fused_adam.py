"""The tests' stand-in for Transformer Engine's FusedAdam keeps what the original keeps, and the agent can move it."""

from typing import Any

import pytest
import torch

from harness.distributed import fused_adam
from relibra.agent.homes.state_readers import reader_of
from relibra.kernels import expert_pack, expert_unpack

original = pytest.importorskip("transformer_engine.pytorch.optimizers")
N = 1000
KINDS: dict[str, dict[str, Any]] = {
    "remainders": {"store_param_remainders": True},
    "fp16": {
        "exp_avg_dtype": torch.float16,
        "exp_avg_sq_dtype": torch.float16,
        "master_weight_dtype": torch.float16,
    },
    "bf16": {"exp_avg_dtype": torch.bfloat16, "exp_avg_sq_dtype": torch.bfloat16, "store_param_remainders": True},
    "fp8": {"exp_avg_dtype": torch.uint8, "exp_avg_sq_dtype": torch.uint8},
}


def trained(adam: Any, device: str, num_steps: int = 3, **options: Any) -> tuple[Any, list[Any]]:
    parameters = [torch.nn.Parameter(_random(seed).bfloat16().to(device)) for seed in range(2)]
    optimizer = adam(parameters, lr=1e-2, weight_decay=0.1, master_weights=True, use_decoupled_grad=True, **options)
    for step in range(num_steps):
        for index, parameter in enumerate(parameters):
            parameter.decoupled_grad = (_random(10 * step + index) * 10.0**index).to(device)
        optimizer.step()
    return optimizer, parameters


def _random(seed: int) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_stand_in_keeps_the_state_of_the_original(kind: str) -> None:
    theirs, of_theirs = trained(original.FusedAdam, "cuda", **KINDS[kind])
    ours, of_ours = trained(fused_adam.FusedAdam, "cpu", **KINDS[kind])
    tolerance = 0.1 if kind == "fp8" else 1e-2
    for their, our in zip(of_theirs, of_ours, strict=True):
        assert theirs.state[their].keys() == ours.state[our].keys()
        assert theirs._scales.get(their, {}).keys() == ours._scales.get(our, {}).keys()
        for name in ours.state[our]:
            got, want = ours.get_unscaled_state(our, name), theirs.get_unscaled_state(their, name).cpu()
            assert (got.dtype == torch.int16) == (want.dtype == torch.int16)
            if got.dtype == torch.int16:
                got, want = (fused_adam.joined(p.data.cpu(), r) for p, r in ((our, got), (their, want)))
            torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance)
        for name, scale in ours._scales.get(our, {}).items():
            torch.testing.assert_close(scale, theirs._scales[their][name].cpu(), rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_S5_the_state_of_the_original_changes_places_bitwise(kind: str) -> None:
    optimizer, parameters = trained(original.FusedAdam, "cuda", **KINDS[kind])
    reader = reader_of(optimizer)
    before = [_values(optimizer, each) for each in parameters]
    tensors = [[each, *reader.tensors(each), *reader.scales(each)] for each in parameters]
    packed = [expert_pack(each, torch.device("cuda")) for each in tensors]
    for buffer, into in zip(reversed(packed), tensors, strict=True):
        expert_unpack(buffer, into)
    for got, want in zip((_values(optimizer, each) for each in parameters), reversed(before), strict=True):
        assert all(torch.equal(got[name], want[name]) for name in want)


def _values(optimizer: Any, parameter: Any) -> dict[str, torch.Tensor]:
    named = {name: optimizer.get_unscaled_state(parameter, name).clone() for name in optimizer.state[parameter]}
    return named | {"weight": parameter.detach().clone()}
