"""Tensors under names are written completely or not at all."""

import copy
from typing import Any
from unittest import mock

import pytest
import torch

from relibra.agent.homes.by_place import (
    PlaceNames,
    check_named,
    check_named_parameters,
    check_optimizer_state_dicts,
    check_state_dicts,
    write_named,
)
from relibra.errors import InvalidInput, Unsupported


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
        check_named(own, given)


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


def test_S9_names_without_a_meaning_are_allowed_and_state_dicts_are_not() -> None:
    homes = mock.Mock()
    homes.placement.moves_to.return_value = ["a move"]
    places = PlaceNames(homes, mock.Mock(), mock.Mock())
    with pytest.raises(Unsupported, match=r"not at their original places\. If the names do not leave .*ignoring_names"):
        places.check_names("named_parameters()")
    with places.ignored():
        places.check_names("named_parameters()")
        with pytest.raises(Unsupported, match=r"not at their original places\. Run an export"):
            places.check_reading("state_dict()")
    with pytest.raises(Unsupported):
        places.check_names("named_parameters()")


@pytest.mark.parametrize(
    ("is_loading", "is_refused"),
    [
        pytest.param({"is_loading": True}, False, id="names-for-a-load"),
        pytest.param({"is_loading": False}, True, id="names-for-a-save"),
        pytest.param({}, True, id="names-for-a-save-by-default"),
    ],
)
def test_S9_only_the_names_of_a_load_open_the_way_for_state_by_place(
    is_loading: dict[str, bool], is_refused: bool
) -> None:
    places = PlaceNames(mock.Mock(has_moved=True), mock.Mock(), mock.Mock())
    optimizer: Any = mock.Mock()
    model = torch.nn.Linear(2, 2)
    weights = model.state_dict()
    check_state_dicts(model, lambda _: None, places.check_writing)
    check_optimizer_state_dicts(
        optimizer, lambda _: None, places.check_writing, lambda: None, places.forget_sharded_names
    )
    with pytest.raises(Unsupported, match="there was a reorder since attach"):
        model.load_state_dict(weights)
    places.logical_experts(0)
    optimizer.sharded_state_dict({}, **is_loading)
    if is_refused:
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            model.load_state_dict(weights)
    else:
        model.load_state_dict(weights)
        optimizer.load_state_dict({})
