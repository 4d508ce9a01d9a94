"""Names by place are refused where a place may stand for another expert."""

import copy
from typing import Any
from unittest import mock

import pytest
import torch

from relibra.agent.homes.by_place import (
    PlaceNames,
    check_named_parameters,
    check_optimizer_state_dicts,
    check_state_dicts,
)
from relibra.agent.homes.checkpoint import ORDER
from relibra.errors import Unsupported


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


def reordered() -> PlaceNames:
    """Return names after a reorder that brought experts 3 and 1 to the slots of this rank."""
    homes = mock.Mock(has_moved=True)
    homes.logical_experts.return_value = [3, 1]
    return PlaceNames(homes, mock.Mock(), mock.Mock())


@pytest.mark.parametrize(
    ("order", "is_refused"),
    [
        pytest.param((3, 1), False, id="the-present-order"),
        pytest.param((0, 1), True, id="an-order-of-before"),
        pytest.param(None, True, id="by-place"),
    ],
)
def test_S9_only_weights_that_bring_the_present_order_along_are_loaded(
    order: tuple[int, ...] | None, is_refused: bool
) -> None:
    places, model = reordered(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    check_state_dicts(model[0], 0, lambda _: None, places.check_writing)
    loaded: dict[str, Any] = {name: torch.ones_like(each) for name, each in model.state_dict().items()}
    loaded |= {} if order is None else {f"0.{ORDER}": order}
    places.logical_experts(0)  # a save of the model alone asks for names, too
    if is_refused:
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            model.load_state_dict(loaded)
    else:
        model.load_state_dict(loaded)
    assert bool((model[0].weight == 1).all()) != is_refused


def test_a_load_without_experts_is_not_refused() -> None:
    places, model = reordered(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    check_state_dicts(model[1], 0, lambda _: None, places.check_writing)
    model.load_state_dict({"0.weight": torch.ones(2, 2)}, strict=False)
    assert bool((model[0].weight == 1).all())


@pytest.mark.parametrize(
    ("is_loading", "is_refused"),
    [
        pytest.param({"is_loading": True}, False, id="names-for-a-load"),
        pytest.param({"is_loading": False}, True, id="names-for-a-save"),
        pytest.param({}, True, id="names-for-a-save-by-default"),
    ],
)
def test_S9_only_the_names_of_a_load_open_the_way_for_state_of_the_optimizer(
    is_loading: dict[str, bool], is_refused: bool
) -> None:
    places, optimizer = reordered(), mock.Mock()
    check_optimizer_state_dicts(
        optimizer, lambda _: None, places.check_writing_state, lambda: None, places.expect_state
    )
    with pytest.raises(Unsupported, match="there was a reorder since attach"):
        optimizer.load_state_dict({})
    places.logical_experts(0)
    optimizer.sharded_state_dict({}, **is_loading)
    if is_refused:
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            optimizer.load_state_dict({})
    else:
        optimizer.load_state_dict({})
        places.forget_sharded_names()
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            optimizer.load_state_dict({})
