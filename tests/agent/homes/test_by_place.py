"""Tensors under names are written completely or not at all."""

import copy

import pytest
import torch

from relibra.agent.homes.by_place import check_named_parameters, write_named
from relibra.errors import InvalidInput


def test_names_of_other_ranks_are_left_out() -> None:
    own = {"mine": torch.zeros(2)}
    write_named(own, {"mine": torch.ones(2), "of another rank": torch.ones(3)})
    assert own["mine"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"a": torch.ones(2)}, "none for b", id="missing"),
        pytest.param({"a": torch.ones(2), "b": torch.ones(3)}, r"b: expected shape \(2,\), got \(3,\)", id="shape"),
    ],
)
def test_S9_incomplete_or_misshapen_weights_are_refused_before_anything_is_written(
    given: dict[str, torch.Tensor], message: str
) -> None:
    own = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(InvalidInput, match=message):
        write_named(own, given)
    assert not own["a"].any()


def test_S9_only_calls_that_hand_names_on_are_checked() -> None:
    asked: list[str] = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    undo = check_named_parameters([model], asked.append)
    assert len(list(model.parameters())) == 2
    assert asked == []
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    assert asked == [f"named_parameters() of Sequential, called in {__name__},"]
    for module, is_asked in {"megatron.core.utils": False, "megatron.core.resharding.planner": True}.items():
        asked.clear()
        exec("names = list(model.named_parameters())", {"__name__": module, "model": model})
        assert bool(asked) == is_asked, module
    copied = copy.deepcopy(model)
    assert dict(copied.named_parameters())["0.weight"] is copied[0].weight
    undo()
    asked.clear()
    list(model.named_parameters())
    assert asked == []
