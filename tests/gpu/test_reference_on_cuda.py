"""The reference of every operation gives the same bits on a CUDA device as on the CPU."""

import pytest
import torch
from torch import Tensor

from relibra.agent.cells.token_copies import token_copies
from relibra.kernels import EMPTY, REST
from relibra.kernels.reference import expert_pack, expert_unpack, grad_accumulate, quota_remap


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def test_S5_quota_remap() -> None:
    routing_map_TE = _random(512, 16) < 0.2
    probs_TE = _random(512, 16) * routing_map_TE
    slot_expert_P = torch.tensor([*range(16), 3, 3, 7, EMPTY])
    share_P = torch.tensor([REST] * 16 + [20, 15, 40, 0])
    on_cpu = quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    on_cuda = quota_remap(probs_TE.cuda(), routing_map_TE.cuda(), slot_expert_P.cuda(), share_P.cuda())
    assert all(torch.equal(a, b.cpu()) for a, b in zip(on_cpu, on_cuda, strict=True))


def test_S5_token_copies() -> None:
    routing_map_TP = torch.zeros(512, 40, dtype=torch.bool)
    routing_map_TP.scatter_(1, _random(512, 40).topk(8).indices, True)
    routing_map_TP[::7, 20:] = False  # fewer than 8 copies
    probs_TP = _random(512, 40) * routing_map_TP
    on_cpu = token_copies(routing_map_TP, probs_TP, 8)
    on_cuda = token_copies(routing_map_TP.cuda(), probs_TP.cuda(), 8)
    assert torch.equal(on_cpu[0], on_cuda[0].cpu())
    is_copy_TK = on_cpu[0] >= 0
    assert torch.equal(on_cpu[1][is_copy_TK], on_cuda[1].cpu()[is_copy_TK])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pack_unpack(dtype: torch.dtype) -> None:
    tensors = [_random(33, 7, dtype=dtype), _random(5, dtype=dtype), _random(128, 64, dtype=dtype)]
    on_cuda = [tensor.cuda() for tensor in tensors]
    buffer = expert_pack(on_cuda, torch.device("cuda"))
    assert torch.equal(buffer.cpu(), expert_pack(tensors, torch.device("cpu")))
    into = [torch.zeros_like(tensor) for tensor in on_cuda]
    expert_unpack(buffer, into)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(tensors, into, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_S5_grad_accumulate(dtype: torch.dtype) -> None:
    target, gradients = _random(1000), [_random(1000, dtype=dtype) * i for i in (1, 100, -7)]
    on_cuda = target.cuda()
    grad_accumulate([on_cuda], [[gradient.cuda() for gradient in gradients]])
    grad_accumulate([target], [gradients])
    assert torch.equal(on_cuda.cpu(), target)
