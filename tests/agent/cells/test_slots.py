from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.experts import SequentialExperts
from relibra.kernels import packed_size_bytes

CPU = torch.device("cpu")


def experts(features: int, dtype: torch.dtype) -> SequentialExperts:
    local = [torch.nn.Linear(features, 3, dtype=dtype) for _ in range(2)]
    return SequentialExperts(SimpleNamespace(local_experts=torch.nn.ModuleList(local)))


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 9), min_size=1),
    st.integers(0, 3),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
)
def test_every_slot_has_memory_of_its_own_for_an_expert_of_any_layer(
    features: dict[int, int], num_slots: int, dtype: torch.dtype, with_gradients: bool
) -> None:
    by_layer = {layer: experts(size, dtype) for layer, size in features.items()}
    slots = Slots(by_layer, num_slots, CPU, with_gradients=with_gradients)
    for layer, each in by_layer.items():
        filled = []
        for side in range(NUM_SIDES):
            for slot in range(num_slots):
                tensors = [*slots.weights(side, slot, layer)]
                tensors += [each for each in slots.gradients(side, slot, layer) if each is not None]
                assert [t.shape for t in tensors[:2]] == [p.shape for p in each.parameters[0]]
                assert {t.dtype for t in tensors[:2]} == {dtype}
                assert {t.dtype for t in tensors[2:]} <= {torch.float32}
                assert len(tensors) == (4 if with_gradients else 2)
                for tensor in tensors:
                    filled.append((tensor.fill_(len(filled)), len(filled)))
        assert all((tensor == value).all() for tensor, value in filled)


@pytest.mark.parametrize("num_layers", [1, 50])
def test_S7_memory_does_not_grow_with_the_number_of_layers(num_layers: int) -> None:
    by_layer = {layer: experts(5, torch.bfloat16) for layer in range(num_layers)}
    one = by_layer[0].parameters[0]
    assert Slots(by_layer, 3, CPU, with_gradients=False).size_bytes == 2 * 3 * packed_size_bytes(one)
    fp32 = packed_size_bytes([each.float() for each in one])
    assert Slots(by_layer, 3, CPU, with_gradients=True).size_bytes == 2 * 3 * (packed_size_bytes(one) + fp32)


def test_autograd_does_not_count_what_arrives_in_a_slot() -> None:
    """Autograd saves the address of the weights, which holds the same values again at the time of the backward."""
    slots = Slots({0: experts(4, torch.float32)}, 1, CPU, with_gradients=False)
    weight = slots.weights(0, 0, 0)[0].requires_grad_()
    loss = (weight * weight).sum()
    slots.weights(0, 0, 0)[0].fill_(2.0)
    loss.backward()
    assert weight.grad is not None
    assert (weight.grad == 4.0).all()


def test_a_stage_without_moe_layers_has_no_slots() -> None:
    assert Slots({}, 2, CPU, with_gradients=True).size_bytes == 0
