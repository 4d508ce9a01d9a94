"""Which parameters of an experts module a replica or a move may meet, and which it would change."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from relibra.agent.adapters import check_parameters, own_adapters, product
from relibra.errors import Unsupported


class Wrapped(nn.Module):
    """A grouped product of two experts, with the matrix of an adapter beside it, as Megatron-Bridge builds it."""

    def __init__(self) -> None:
        super().__init__()
        self.to_wrap = nn.Module()
        for expert in range(2):
            self.to_wrap.register_parameter(f"weight{expert}", nn.Parameter(torch.zeros(4, 4)))
        self.adapter = nn.Linear(4, 2, bias=False)


@pytest.fixture
def experts() -> Any:
    """Return an experts module whose first product has an adapter."""
    module = nn.Module()
    module.linear_fc1, module.linear_fc2 = Wrapped(), Wrapped().to_wrap
    return module


class Summing:
    """An adapter of Bridge 0.5.1, whose hooks sum gradients of matrices that ranks have drawn for themselves."""

    def _allreduce_shared_expert_grad(self, gradient: Tensor) -> Tensor:
        return gradient


class Shared(Summing):
    """An adapter of Bridge 0.6, whose matrices are equal on all ranks of an EP group."""

    def _synchronize_shared_expert_parameters(self) -> None: ...


class ParallelLinearAdapter(nn.Linear):
    """An adapter of Bridge up to 0.5.0."""


def test_the_product_is_found_inside_its_adapter(experts: Any) -> None:
    assert product(experts, "linear_fc1") == ("linear_fc1.to_wrap", experts.linear_fc1.to_wrap)
    assert product(experts, "linear_fc2") == ("linear_fc2", experts.linear_fc2)
    assert product(experts, "linear_fc3") == ("linear_fc3", None)


def test_S9_matrices_whose_gradients_nobody_sums_are_refused_by_name(experts: Any) -> None:
    with pytest.raises(Unsupported, match=r"linear_fc1\.adapter\.weight of the experts.*share_expert_adapters=True"):
        check_parameters(experts)


@pytest.mark.parametrize("by_hook", [True, False])
def test_matrices_that_all_experts_of_a_layer_share_are_taken(experts: Any, by_hook: bool) -> None:
    weight = experts.linear_fc1.adapter.weight
    if by_hook:
        weight.register_hook(Shared()._allreduce_shared_expert_grad)
    else:
        weight.expert_parallel_replicated = True
    check_parameters(experts)


def test_matrices_of_the_experts_of_a_rank_are_taken_where_homes_stay(experts: Any) -> None:
    experts.linear_fc1.adapter = adapter = ParallelLinearAdapter(4, 2, bias=False)
    assert own_adapters(experts) == [("linear_fc1.adapter", experts.linear_fc1, adapter)]
    check_parameters(experts, homes_stay=True)
    with pytest.raises(Unsupported, match=r"linear_fc1\.adapter\.weight of the experts.*reorder=never"):
        check_parameters(experts)


def test_S9_sums_over_matrices_that_ranks_have_drawn_for_themselves_are_refused(experts: Any) -> None:
    experts.linear_fc1.adapter = adapter = ParallelLinearAdapter(4, 2, bias=False)
    adapter.weight.register_hook(Summing()._allreduce_shared_expert_grad)
    with pytest.raises(Unsupported, match=r"linear_fc1\.adapter\.weight of the experts"):
        check_parameters(experts, homes_stay=True)


def test_S9_hooks_that_fused_gradients_do_not_reach_are_refused(experts: Any) -> None:
    adapter = experts.linear_fc1.adapter
    adapter.weight.register_hook(Shared()._allreduce_shared_expert_grad)
    adapter.gradient_accumulation_fusion = True
    with pytest.raises(Unsupported, match="gradient_accumulation_fusion=True, whose gradients"):
        check_parameters(experts)


def test_S9_a_quantiser_that_keeps_the_range_of_an_experts_weights_is_refused_by_name(experts: Any) -> None:
    experts.linear_fc1 = experts.linear_fc1.to_wrap
    check_parameters(experts)
    experts.linear_fc1.weight_quantizer = nn.Module()
    experts.linear_fc1.weight_quantizer.register_buffer("_amax", torch.ones(()))
    with pytest.raises(Unsupported, match=r"linear_fc1\.weight_quantizer\._amax of the experts.*no quantisation-aware"):
        check_parameters(experts)


def test_S9_a_matrix_of_two_products_is_refused(experts: Any) -> None:
    experts.linear_fc2.weight1 = experts.linear_fc1.to_wrap.weight1
    with pytest.raises(Unsupported, match=r"weight1 of the experts"):
        check_parameters(experts)
