"""No operator of the hot path makes the host wait for the device: torch raises if one does."""

from collections.abc import Callable, Iterator

import pytest
import torch

from relibra.agent.cells.token_copies import token_copies
from relibra.kernels import REST, expert_pack, expert_unpack, grad_accumulate, quota_remap

T, E, P, K = 64, 32, 40, 8


@pytest.fixture
def strict() -> Iterator[Callable[[], None]]:
    """Call it where waiting becomes an error."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def hot_path(probs: torch.Tensor, slot_expert: torch.Tensor, share: torch.Tensor) -> None:
    """Route, fetch, compute and return gradients, as a cell with replicas does."""
    probs = probs.detach().requires_grad_()
    physical, physical_map = quota_remap(probs, probs > 0.5, slot_expert, share)
    token_copies(physical_map, physical.detach(), K)
    physical.sum().backward()
    weights = [probs.detach(), physical.detach()]
    expert_unpack(expert_pack(weights, probs.device), [torch.empty_like(each) for each in weights])
    grad_accumulate([torch.zeros_like(probs)], [[probs.detach(), probs.detach()]])


def test_operators_and_their_backward_never_wait(strict: Callable[[], None]) -> None:
    probs = torch.rand(T, E, device="cuda")
    slot_expert = (torch.arange(P) % E).int().cuda()
    share = torch.tensor([REST] * E + [2] * (P - E)).int().cuda()
    hot_path(probs, slot_expert, share)  # the first call loads the kernels
    strict()
    hot_path(probs, slot_expert, share)


def test_the_error_is_raised_where_the_host_waits(strict: Callable[[], None]) -> None:
    value = torch.ones(1, device="cuda")
    strict()
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        value.item()
