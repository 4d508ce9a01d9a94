"""Every reference operation, compared with a naive loop."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relibra.kernels import (
    ALIGNMENT_BYTES,
    EMPTY,
    REST,
    expert_checksum,
    expert_pack,
    expert_unpack,
    grad_accumulate,
    packed_size_bytes,
    quota_remap,
    reference,
)


@st.composite
def routings(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw probs, routing map, slot experts and shares: one home slot per expert, any replicas, shares and order."""
    num_experts, num_tokens = draw(st.integers(1, 6)), draw(st.integers(0, 14))
    experts = st.integers(0, num_experts - 1)
    replicas = draw(st.lists(st.tuples(experts, st.integers(0, 9)), max_size=6))
    slots = [(expert, REST) for expert in range(num_experts)] + replicas + [(EMPTY, 0)] * draw(st.integers(0, 2))
    slots = draw(st.permutations(slots))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    routing_map_TE = torch.from_numpy(rng.random((num_tokens, num_experts)) < 0.6)
    probs_TE = torch.from_numpy(rng.random((num_tokens, num_experts))) * routing_map_TE
    slot_expert_P, share_P = (torch.tensor(column, dtype=torch.int32) for column in zip(*slots, strict=True))
    return probs_TE, routing_map_TE, slot_expert_P, share_P


def naive_remap(probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor) -> Tensor:
    """Return the physical routing map, computed token by token."""
    left = share_P.tolist()
    routing_map_TP = torch.zeros(len(routing_map_TE), len(left), dtype=torch.bool)
    for token, chosen_E in enumerate(routing_map_TE.tolist()):
        for expert in np.flatnonzero(chosen_E):
            slots = [slot for slot, held in enumerate(slot_expert_P.tolist()) if held == expert]
            open_slots = [slot for slot in slots if share_P[slot] != REST and left[slot] > 0]
            slot = open_slots[0] if open_slots else next(slot for slot in slots if share_P[slot] == REST)
            left[slot] -= 1
            routing_map_TP[token, slot] = True
    return routing_map_TP


@given(routings())
def test_S5_quota_remap_is_what_a_loop_over_tokens_does(routing: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = routing
    probs_TP, routing_map_TP = quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    want_TP = naive_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    assert torch.equal(routing_map_TP, want_TP)
    for token, slot in want_TP.nonzero().tolist():
        assert probs_TP[token, slot] == probs_TE[token, int(slot_expert_P[slot])]
    assert not probs_TP[~want_TP].any()


@given(routings())
def test_S5_quota_remap_loses_no_route_and_no_gradient(routing: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    probs_TE, routing_map_TE, slot_expert_P, share_P = routing
    probs_TE.requires_grad_()
    probs_TP, routing_map_TP = quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    assert routing_map_TP.sum() == routing_map_TE.sum()
    assert (routing_map_TP.sum(dim=1) == routing_map_TE.sum(dim=1)).all()
    upstream_TP = torch.rand_like(probs_TP)
    (probs_TP * upstream_TP).sum().backward()
    want_TE = torch.zeros_like(probs_TE)
    for token, slot in routing_map_TP.nonzero().tolist():
        want_TE[token, int(slot_expert_P[slot])] = upstream_TP[token, slot]
    assert torch.equal(probs_TE.grad, want_TE)


@pytest.mark.parametrize("expert", [2, 10**6, EMPTY, -5])
def test_S7_a_slot_whose_expert_does_not_exist_takes_nothing_and_gives_nothing_back(expert: int) -> None:
    """The reference behaves as the kernel does; the operator refuses such a slot on the CPU."""
    routing_map_TE, slot_expert_P = torch.ones(40, 2, dtype=torch.bool), torch.tensor([0, 1, expert])
    share_P = torch.tensor([REST, REST, 30])
    _, routing_map_TP = reference.quota_remap(torch.rand(40, 2), routing_map_TE, slot_expert_P, share_P)
    assert routing_map_TP.sum(dim=0).tolist() == [40, 40, 0]
    grad_TE = reference.quota_give_back(torch.ones(40, 3), routing_map_TP, slot_expert_P, num_experts=2)
    assert torch.equal(grad_TE, torch.ones(40, 2))


def test_S7_a_negative_share_takes_nothing() -> None:
    routing_map_TE, slot_expert_P = torch.ones(40, 1, dtype=torch.bool), torch.zeros(4, dtype=torch.int32)
    _, routing_map_TP = quota_remap(
        torch.rand(40, 1), routing_map_TE, slot_expert_P, torch.tensor([3, -5, 4, REST]).int()
    )
    assert routing_map_TP.sum(dim=0).tolist() == [3, 0, 4, 33]
    assert bool((routing_map_TP.sum(dim=1) == 1).all())


def test_quota_remap_without_replicas_permutes_columns() -> None:
    probs_TE = torch.rand(5, 4)
    routing_map_TE = torch.rand(5, 4) < 0.5
    order_P = torch.tensor([2, 0, 3, 1])
    probs_TP, routing_map_TP = quota_remap(probs_TE, routing_map_TE, order_P, torch.full((4,), REST))
    assert torch.equal(routing_map_TP, routing_map_TE[:, order_P])
    assert torch.equal(probs_TP, (probs_TE * routing_map_TE)[:, order_P])


_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.int64])
_SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(st.lists(st.tuples(_DTYPES, _SHAPES), max_size=6))
def test_unpacking_what_was_packed_is_bitwise(specs: list[tuple[torch.dtype, list[int]]]) -> None:
    tensors = [torch.randint(0, 200, shape).to(dtype) for dtype, shape in specs]
    buffer = expert_pack(tensors, torch.device("cpu"))
    assert buffer.numel() == packed_size_bytes(tensors)
    assert buffer.numel() % ALIGNMENT_BYTES == 0
    into = [torch.zeros_like(tensor) for tensor in tensors]
    expert_unpack(buffer, into)
    assert all(map(torch.equal, into, tensors))


def test_packing_reads_and_fills_tensors_that_are_not_contiguous() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    into = torch.zeros(3, 4).t()
    expert_unpack(expert_pack([matrix.t()], torch.device("cpu")), [into])
    assert torch.equal(into, matrix.t())


@given(st.integers(0, 9), st.integers(0, 5), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.data())
def test_S5_gradients_are_summed_in_fp32_in_the_order_given(
    num: int, num_gradients: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1)))
    target = torch.randn(num, generator=random)
    gradients = [(torch.randn(num, generator=random) * 10**i).to(dtype) for i in range(num_gradients)]
    want = target.numpy().copy()
    for gradient in gradients:
        want += gradient.float().numpy()
    grad_accumulate([target], [gradients])
    assert np.array_equal(target.numpy(), want)


def test_the_order_of_gradients_matters_and_is_kept() -> None:
    large, small = torch.tensor([2.0**24]), torch.tensor([1.0])
    sums = torch.zeros(1), torch.zeros(1)
    grad_accumulate(sums, [[small, large, -large], [large, -large, small]])
    assert [float(total) for total in sums] == [0.0, 1.0]


def test_S7_a_buffer_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 16 bytes for 1 tensors, got 32"):
        expert_unpack(torch.zeros(32, dtype=torch.uint8), [torch.zeros(4)])


def test_a_checksum_tells_contents_places_and_owners_apart() -> None:
    words = torch.tensor([3, 5, 0, 7], dtype=torch.int64)
    packed = words.view(torch.uint8)
    checksum = expert_checksum(packed, salt=1)
    assert checksum == 3 * 1 + 5 * 3 + 7 * 7 + 1
    assert expert_checksum(packed, salt=2) != checksum
    assert expert_checksum(words[[1, 0, 2, 3]].view(torch.uint8), salt=1) != checksum
    for i in range(len(packed)):
        damaged = packed.clone()
        damaged[i] ^= 64
        assert expert_checksum(damaged, salt=1) != checksum
    assert expert_checksum(packed[:0], salt=5) == 5


@given(st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_checksum_weighs_every_word_by_its_place(num_words: int, seed: int) -> None:
    """The number of words need not fill a square."""
    words = torch.randint(-(2**63), 2**63 - 1, (num_words,), generator=torch.Generator().manual_seed(seed))
    want = sum(word * (2 * i + 1) for i, word in enumerate(words.tolist())) + 7
    assert (int(expert_checksum(words.view(torch.uint8), salt=7)) - want) % 2**64 == 0


class LargestResult(TorchDispatchMode):
    """Notes the largest memory that the result of an operation takes, unless it is part of `given`."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self._given, self.size_bytes = given.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if (storage := result.untyped_storage()).data_ptr() != self._given:
            self.size_bytes = max(self.size_bytes, storage.nbytes())
        return result


def test_S7_a_checksum_takes_no_memory_beside_the_buffer() -> None:
    """A reorder checks experts inside `reorder_buffer_bytes`. Weights for all words took twice an expert beside it."""
    packed = torch.ones(1 << 20, dtype=torch.uint8)
    with LargestResult(packed) as largest:
        expert_checksum(packed, salt=0)
    assert 0 < largest.size_bytes <= 1 << 13
