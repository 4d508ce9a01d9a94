"""The kernels, run by an emulation on the CPU, against the reference: every bit is equal, no byte beside is written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from relibra.kernels import EMPTY, REST, cuda, reference
from relibra.kernels.launch import MAX_GRADIENTS, MAX_SEGMENTS, MAX_TARGETS, TILE_BYTES, TILE_ELEMENTS, Launch, Run

_GUARD = 0xA5
_MARGIN_BYTES = 64
_few = settings(max_examples=25)


class Arena:
    """Memory that holds tensors at given offsets from 16-byte boundaries, with guard bytes around each tensor."""

    def __init__(self, size_bytes: int) -> None:
        self.memory = torch.full((size_bytes + 16,), _GUARD, dtype=torch.uint8)
        self._end = -self.memory.data_ptr() % 16
        self._guards = torch.ones_like(self.memory, dtype=torch.bool)

    def like(self, tensor: Tensor, shift: int = 0) -> Tensor:
        """Return a new tensor of this shape and dtype that starts `shift` bytes after a boundary."""
        begin = self._end + _MARGIN_BYTES + shift
        end = begin + tensor.nbytes
        self._end += _MARGIN_BYTES + -(-(shift + tensor.nbytes) // 16) * 16 + _MARGIN_BYTES
        assert self._end <= len(self.memory)
        self._guards[begin:end] = False
        return self.memory[begin:end].view(tensor.dtype).view(tensor.shape)

    def assert_untouched(self) -> None:
        assert (self.memory[self._guards] == _GUARD).all(), "bytes beside the tensors were written"


def _random(size_bytes: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


_SIZES = st.one_of(st.integers(0, 70), st.integers(TILE_BYTES - 20, TILE_BYTES + 20), st.just(2 * TILE_BYTES + 7))


@_few
@given(st.lists(st.tuples(_SIZES, st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=5))
def test_pack_and_unpack_move_any_bytes_between_any_addresses(run: Run, specs: list[tuple[int, int, int]]) -> None:
    arena = Arena(sum(size_bytes + 2 * _MARGIN_BYTES + 64 for size_bytes, _, _ in specs))
    sources = [_random(size_bytes + shift, i)[shift:] for i, (size_bytes, shift, _) in enumerate(specs)]
    want = reference.expert_pack(sources, torch.device("cpu"))
    assert torch.equal(cuda.expert_pack(run, sources), want)
    into = [arena.like(tensor, shift) for tensor, (_, _, shift) in zip(sources, specs, strict=True)]
    cuda.expert_unpack(run, want, into)
    assert all(map(torch.equal, into, sources))
    arena.assert_untouched()


def test_more_tensors_than_a_table_holds_take_several_launches(run: Run) -> None:
    launches: list[Launch] = []

    def recorded(launch: Launch) -> None:
        launches.append(launch)
        run(launch)

    sources = [_random(1 + i % 37, i) for i in range(2 * MAX_SEGMENTS + 20)]
    assert torch.equal(cuda.expert_pack(recorded, sources), reference.expert_pack(sources, torch.device("cpu")))
    assert len(launches) == 3


def test_pack_of_whole_experts_is_one_launch_and_overwrites_what_the_allocator_left(run: Run) -> None:
    sources = [torch.randn(33, 7).bfloat16(), torch.randn(5, dtype=torch.float64), torch.randn(129, 65)]
    launches: list[Launch] = []
    buffer = cuda.expert_pack(launches.append, sources)
    buffer.fill_(_GUARD)
    run(launches[0])
    assert len(launches) == 1
    assert torch.equal(buffer, reference.expert_pack(sources, torch.device("cpu")))


_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
_COUNTS = st.one_of(st.integers(0, 40), st.integers(TILE_ELEMENTS - 5, TILE_ELEMENTS + 5))


@_few
@given(
    st.lists(st.tuples(_COUNTS, st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4),
    _DTYPES,
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_S5_sums_have_the_bits_of_the_reference(
    run: Run, specs: list[tuple[int, int, int]], dtype: torch.dtype, shift: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    arena = Arena(sum(4 * num + 2 * _MARGIN_BYTES + 64 for num, _, _ in specs))
    into, gradients = [], []
    for num, num_gradients, target_shift in specs:
        target = arena.like(torch.empty(num), 4 * target_shift)
        into.append(target.copy_(torch.randn(num, generator=random)))
        scale = 10.0 ** torch.randint(-6, 4, (num_gradients, num + shift), generator=random)
        gradients.append([row[shift:] for row in (torch.randn_like(scale) * scale).to(dtype)])
    want = [target.clone() for target in into]
    reference.grad_accumulate(want, gradients)
    cuda.grad_accumulate(run, into, gradients)
    assert all(map(torch.equal, into, want))
    arena.assert_untouched()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_sixteen_bit_number_widens_exactly(run: Run, dtype: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    into, want = torch.zeros(2**16), torch.zeros(2**16)
    cuda.grad_accumulate(run, [into], [[numbers]])
    reference.grad_accumulate([want], [[numbers]])
    assert torch.equal(into.nan_to_num(nan=-1.5), want.nan_to_num(nan=-1.5))


def test_sums_of_more_targets_and_gradients_than_a_table_holds_keep_their_order(run: Run) -> None:
    into = [torch.zeros(3) for _ in range(MAX_TARGETS + 6)]
    gradients = [[torch.randn(3) for _ in range(i % 7)] for i in range(len(into))]
    gradients[5] = [torch.randn(3) for _ in range(2 * MAX_GRADIENTS + 1)]
    gradients[6:9] = [[torch.randn(3, dtype=torch.bfloat16)], [], [torch.randn(3, dtype=torch.float16)]]
    want = [target.clone() for target in into]
    reference.grad_accumulate(want, gradients)
    cuda.grad_accumulate(run, into, gradients)
    assert all(map(torch.equal, into, want))


@_few
@given(
    num_tokens=st.one_of(st.integers(0, 5), st.integers(60, 70), st.just(1100)),
    num_experts=st.one_of(st.integers(1, 6), st.just(130)),
    num_replicas=st.integers(0, 12),
    most_share=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_S5_tokens_go_where_the_reference_sends_them(
    run: Run, num_tokens: int, num_experts: int, num_replicas: int, most_share: int, dtype: torch.dtype, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    routing_map_TE = torch.rand(num_tokens, num_experts, generator=random) < 0.4
    probs_TE = torch.rand(num_tokens, num_experts, generator=random).to(dtype) * routing_map_TE
    replicas = torch.randint(0, num_experts, (num_replicas,), generator=random)
    shares = torch.randint(0, most_share + 1, (num_replicas,), generator=random)
    slot_expert_P = torch.cat([torch.arange(num_experts), replicas, torch.tensor([EMPTY])]).int()
    share_P = torch.cat([torch.full((num_experts,), REST), shares, torch.tensor([0])]).int()
    order_P = torch.randperm(len(share_P), generator=random)
    slot_expert_P, share_P = slot_expert_P[order_P].contiguous(), share_P[order_P].contiguous()

    probs_TP, routing_map_TP = cuda.quota_remap(run, probs_TE, routing_map_TE, slot_expert_P, share_P)
    want_TP, want_map_TP = reference.quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    assert torch.equal(routing_map_TP, want_map_TP)
    assert torch.equal(probs_TP, want_TP)

    grad_TP = torch.randn(probs_TP.shape, generator=random).to(dtype)
    grad_TE = cuda.quota_give_back(run, grad_TP, routing_map_TP, slot_expert_P, num_experts)
    assert torch.equal(grad_TE, reference.quota_give_back(grad_TP, routing_map_TP, slot_expert_P, num_experts))


def test_S7_a_slot_whose_expert_does_not_exist_takes_nothing(run: Run) -> None:
    routing_map_TE = torch.ones(40, 2, dtype=torch.bool)
    slot_expert_P = torch.tensor([0, 1, 7, -5], dtype=torch.int32)
    share_P = torch.tensor([REST, REST, 100, 100], dtype=torch.int32)
    _, routing_map_TP = cuda.quota_remap(run, torch.rand(40, 2), routing_map_TE, slot_expert_P, share_P)
    assert routing_map_TP.sum(dim=0).tolist() == [40, 40, 0, 0]


def test_S7_a_negative_share_takes_nothing(run: Run) -> None:
    slot_expert_P = torch.tensor([0, 0, 0, 0], dtype=torch.int32)
    share_P = torch.tensor([3, -5, 4, REST], dtype=torch.int32)
    routing_map_TE = torch.ones(40, 1, dtype=torch.bool)
    _, routing_map_TP = cuda.quota_remap(run, torch.rand(40, 1), routing_map_TE, slot_expert_P, share_P)
    assert routing_map_TP.sum(dim=0).tolist() == [3, 0, 4, 33]
    assert bool((routing_map_TP.sum(dim=1) == 1).all())
