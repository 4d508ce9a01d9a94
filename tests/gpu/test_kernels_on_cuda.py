"""Every kernel on the device: bits of the CPU reference, the current stream, no waiting for the device, CUDA graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

from relibra.kernels import (
    EMPTY,
    REST,
    driver,
    expert_pack,
    expert_unpack,
    grad_accumulate,
    quota_remap,
    reference,
    token_split,
)
from relibra.planning.split import source_share


@pytest.fixture(autouse=True)
def _kernels_are_there() -> None:
    assert driver.device(torch.cuda.current_device()) is not None, "the kernels fell back to their reference"


@contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _routing(num_tokens: int, num_experts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    routing_map_TE = _random(num_tokens, num_experts) > 1.2
    probs_TE = (_random(num_tokens, num_experts, seed=1).sigmoid() * routing_map_TE).to(dtype)
    slot_expert_P = torch.cat([torch.arange(num_experts), torch.tensor([0, 1, 1, EMPTY])]).int()
    share_P = torch.cat([torch.full((num_experts,), REST), torch.tensor([10, 5, 300, 0])]).int()
    return probs_TE, routing_map_TE, slot_expert_P, share_P


@pytest.mark.parametrize(
    "shapes",
    [
        [(3,), (0,), (5, 7), (40_000,)],
        [(1536, 512), (512, 768)],
        [(1 + i,) for i in range(300)],
    ],
    ids=["odd", "expert", "many"],
)
@pytest.mark.parametrize("shift", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_pack_and_unpack(shapes: list[tuple[int, ...]], shift: int, dtype: torch.dtype) -> None:
    flat = [_random(shift + torch.Size(shape).numel(), dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    tensors = [row[shift:].view(shape) for row, shape in zip(flat, shapes, strict=True)]
    shifted = [row.cuda()[shift:].view(shape) for row, shape in zip(flat, shapes, strict=True)]
    into = [torch.zeros_like(row).cuda()[shift:].view(shape) for row, shape in zip(flat, shapes, strict=True)]
    with _no_waiting():
        buffer = expert_pack(shifted, torch.device("cuda"))
        expert_unpack(buffer, into)
    assert torch.equal(buffer.cpu(), reference.expert_pack(tensors, torch.device("cpu")))
    assert all(torch.equal(a, b.cpu()) for a, b in zip(tensors, into, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [0, 1])
def test_S5_accumulate(dtype: torch.dtype, shift: int) -> None:
    sizes, counts = [3, 8192, 100_003], [2, 0, 7]
    into = [_random(size + shift, seed=size)[shift:] for size in sizes]
    gradients = [
        [_random(size + shift, dtype=dtype, seed=i)[shift:] for i in range(num)]
        for size, num in zip(sizes, counts, strict=True)
    ]
    on_cuda = [torch.cat([torch.zeros(shift), target]).cuda()[shift:] for target in into]
    added = [[torch.cat([g.new_zeros(shift), g]).cuda()[shift:] for g in some] for some in gradients]
    with _no_waiting():
        grad_accumulate(on_cuda, added)
    reference.grad_accumulate(into, gradients)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(into, on_cuda, strict=True))


@pytest.mark.parametrize(("num_tokens", "num_experts"), [(0, 8), (1, 8), (4099, 128), (20_000, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_S5_remap_forward_and_backward(num_tokens: int, num_experts: int, dtype: torch.dtype) -> None:
    routing = _routing(num_tokens, num_experts, dtype)
    on_cuda = [tensor.cuda() for tensor in routing]
    upstream_TP = _random(num_tokens, num_experts + 4, dtype=dtype, seed=2)
    upstream_on_cuda_TP = upstream_TP.cuda()
    routing[0].requires_grad_()
    on_cuda[0].requires_grad_()
    with _no_waiting():
        probs_TP, routing_map_TP = quota_remap(*on_cuda)
        probs_TP.backward(upstream_on_cuda_TP)
    want_TP, want_map_TP = reference.quota_remap(*routing)
    want_TP.backward(upstream_TP)
    assert torch.equal(routing_map_TP.cpu(), want_map_TP)
    assert torch.equal(probs_TP.detach().cpu(), want_TP.detach())
    assert torch.equal(on_cuda[0].grad.cpu(), routing[0].grad)


@pytest.mark.parametrize(("num_ranks", "gpus_per_node"), [(8, 8), (32, 8), (64, 64)])
def test_S1_the_device_splits_tokens_as_planning_does(num_ranks: int, gpus_per_node: int) -> None:
    """Each rank has 4 home slots, and in 2 slots the first and second expert of its neighbour."""
    rank_R = np.arange(num_ranks, dtype=np.int32)
    neighbour_R = rank_R // gpus_per_node * gpus_per_node + (rank_R + 1) % gpus_per_node
    home_E, expert_R2 = np.repeat(rank_R, 4), 4 * neighbour_R[:, None] + np.arange(2, dtype=np.int32)
    order_Y = np.argsort(expert_R2.ravel())
    counts_RE = np.random.default_rng(0).lognormal(4, 2, (num_ranks, 4 * num_ranks)).astype(np.int32)
    slot_expert_P = np.concatenate([np.arange(4 * num_ranks, dtype=np.int32).reshape(-1, 4), expert_R2], axis=1).ravel()
    counts, slots = torch.from_numpy(counts_RE).cuda(), torch.from_numpy(slot_expert_P).cuda()
    for rank in range(num_ranks):
        want_R2, rank_Y = np.zeros(2 * num_ranks, dtype=np.int64), rank_R.repeat(2)[order_Y]
        expert_Y = expert_R2.ravel()[order_Y]
        want_R2[order_Y] = source_share(counts_RE, home_E, expert_Y, rank_Y, gpus_per_node, rank)
        with _no_waiting():
            share_P = token_split(counts, slots, gpus_per_node, rank, pytest.fail)
        share_R6 = share_P.view(num_ranks, 6).cpu()
        assert (share_R6[:, :4] == REST).all()
        assert share_R6[:, 4:].flatten().tolist() == want_R2.tolist()


@pytest.mark.parametrize("expert", [8, 10**6, -5, -(2**32)])
@pytest.mark.parametrize("remap", [quota_remap, reference.quota_remap], ids=["kernel", "reference"])
def test_S7_a_slot_whose_expert_does_not_exist_takes_nothing(
    remap: Callable[..., tuple[Tensor, Tensor]], expert: int
) -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = (tensor.cuda() for tensor in _routing(100, 8, torch.float32))
    slot_expert_P = slot_expert_P.long()
    slot_expert_P[-1], share_P[-1] = expert, 50
    _, routing_map_TP = remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    assert int(routing_map_TP[:, -1].sum()) == 0
    assert int(routing_map_TP.sum()) == int(routing_map_TE.sum())
    upstream_TP = torch.ones_like(routing_map_TP, dtype=torch.float32)
    grad_TE = reference.quota_give_back(upstream_TP, routing_map_TP, slot_expert_P, 8)
    assert torch.equal(grad_TE, routing_map_TE.float())


def test_an_operator_runs_on_the_current_stream() -> None:
    tensors = [torch.zeros(100_000, device="cuda")]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        tensors[0].fill_(3.0)
        buffer = expert_pack(tensors, torch.device("cuda"))
        into = torch.zeros(100_000, device="cuda")
        expert_unpack(buffer, [into])
        total = into.sum()
    torch.cuda.synchronize()
    assert total.item() == 300_000


def _all_operators(values: Tensor, slot_expert: Tensor, share: Tensor) -> list[Tensor]:
    """Run every operator once on fp32 `[64, 32]` values and return tensors that depend on them."""
    probs, physical_map = quota_remap(values, values > 0.5, slot_expert, share)
    buffer = expert_pack([values, probs], values.device)
    into, into_probs = torch.empty_like(values), torch.empty_like(probs)
    expert_unpack(buffer, [into, into_probs])
    grad_accumulate([into], [[values, values]])
    return [probs, physical_map, buffer, into]


def test_a_cuda_graph_replays_every_operator_on_new_values() -> None:
    values = _random(64, 32).cuda()
    slot_expert = (torch.arange(40) % 32).int().cuda()
    share = torch.tensor([REST] * 32 + [2] * 8).int().cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        _all_operators(values, slot_expert, share)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = _all_operators(values, slot_expert, share)
    for seed in (7, 8):
        values.copy_(_random(64, 32, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, results, _all_operators(values, slot_expert, share)))


def test_results_are_the_same_in_every_run() -> None:
    routing = [tensor.cuda() for tensor in _routing(8192, 128, torch.bfloat16)]
    first = quota_remap(*routing)
    assert all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, quota_remap(*routing), strict=True))


@pytest.mark.parametrize("operation", [expert_pack, reference.expert_pack])
def test_tensors_that_are_not_contiguous_take_the_reference(operation: Callable[..., Tensor]) -> None:
    matrix = _random(30, 20)
    assert torch.equal(
        operation([matrix.cuda().t()], torch.device("cuda")).cpu(),
        reference.expert_pack([matrix.t()], torch.device("cpu")),
    )
