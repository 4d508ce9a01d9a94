"""What routers of other frameworks return, and how many tokens chose each expert."""

from typing import Any

import pytest
import torch
from torch import Tensor

from relibra.agent.observed.choices import chosen_experts, count_choices
from relibra.errors import Unsupported

E = 4
IDS = torch.tensor([[0, 1], [1, 3], [1, 0]])
MAP = torch.zeros(3, E, dtype=torch.bool).scatter(1, IDS, True)
PROBS = torch.rand(3, E)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param((PROBS, MAP), id="megatron-core: TopKRouter"),
        pytest.param((PROBS[:, :2], IDS, torch.tensor([2.0, 3.0, 0.0, 1.0])), id="torchtitan: TokenChoiceTopKRouter"),
        pytest.param((PROBS, PROBS[:, :2], IDS), id="transformers: Qwen3MoeTopKRouter"),
        pytest.param((IDS.to(torch.int32).view(1, 3, 2), PROBS), id="ids [batch, tokens, top_k] before weights"),
        pytest.param({"weights": PROBS, "ids": IDS}, id="a mapping"),
        pytest.param(MAP, id="a map alone"),
    ],
)
def test_choices_are_read_from_what_routers_return(output: Any) -> None:
    assert count_choices(chosen_experts(output, E), E).tolist() == [2, 3, 0, 1]


def test_negative_ids_are_no_choice() -> None:
    assert count_choices(torch.tensor([[0, -1], [-1, -1], [3, 0]]), E).tolist() == [2, 0, 0, 1]
    assert count_choices(torch.zeros((0, 2), dtype=torch.int64), E).tolist() == [0] * E


@pytest.mark.parametrize("output", [PROBS, (PROBS, None), (PROBS, torch.tensor(3)), None])
def test_S9_a_router_that_tells_no_choice_is_refused_with_the_way_out(output: Tensor | tuple[Any, ...] | None) -> None:
    with pytest.raises(Unsupported, match=r"observe\(\.\.\., chosen=lambda output: ids\)"):
        chosen_experts(output, E)
