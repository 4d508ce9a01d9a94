"""State of megatron's HybridDeviceOptimizer changes places between the host and the device."""

import pytest
import torch

from relibra.agent.homes.state_readers import reader_of
from relibra.kernels import expert_pack, expert_unpack

pytest.importorskip("megatron.core")
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

N = 1000


class Trained:
    """Two bf16 parameters, of which the first is offloaded."""

    def __init__(self) -> None:
        self.parameters = [_random(seed).cuda().bfloat16() for seed in range(2)]
        self.optimizer = HybridDeviceOptimizer(
            [{"params": self.parameters}],
            offload_fraction=0.5,
            cpu_optimizer_cls=torch.optim.AdamW,
            gpu_optimizer_cls=torch.optim.AdamW,
            param_update_in_fp32=True,
            overlap_cpu_optimizer_d2h_h2d=True,
            lr=1e-2,
            fused=True,
        )

    def step(self, *gradients: torch.Tensor) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.decoupled_grad = gradient.cuda()
        self.optimizer.step()

    @property
    def tensors(self) -> list[list[torch.Tensor]]:
        reader = reader_of(self.optimizer)
        return [[each, *reader.tensors(each)] for each in self.parameters]

    @torch.no_grad()
    def swap(self) -> None:
        packed = [expert_pack(each, torch.device("cuda")) for each in self.tensors]
        for buffer, into in zip(reversed(packed), self.tensors, strict=True):
            expert_unpack(buffer, into)


def _random(seed: int) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_steps", [0, 1])
def test_S5_parameters_that_change_places_between_host_and_device_train_as_before(num_steps: int) -> None:
    plain, moved = Trained(), Trained()
    for _ in range(num_steps):
        for each in (plain, moved):
            each.step(_random(2), _random(3))
    assert [each[1].device.type for each in moved.tensors] == ["cpu", "cuda"]
    moved.swap()
    for got, want in zip(reversed(moved.tensors), plain.tensors, strict=True):
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(got, want, strict=True))
    plain.step(_random(4), _random(5))
    moved.step(_random(5), _random(4))
    for got, want in zip(reversed(moved.tensors), plain.tensors, strict=True):
        for a, b in zip(got, want, strict=True):
            tolerance = 1e-2 if a.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=tolerance, atol=tolerance)
