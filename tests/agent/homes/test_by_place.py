"""Names by place are refused where a place may stand for another expert."""

import copy
from unittest import mock

import pytest
import torch

from relibra.agent.homes.by_place import (
    PlaceNames,
    check_named_parameters,
    check_optimizer_state_dicts,
)
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
    with places.ignore():
        places.check_names("named_parameters()")
        with pytest.raises(Unsupported, match=r"not at their original places\. Run an export"):
            places.check_reading("state_dict()")
    with pytest.raises(Unsupported):
        places.check_names("named_parameters()")


def reordered() -> PlaceNames:
    """Return names after a reorder."""
    homes = mock.Mock(has_moved=True)
    homes.placement.fingerprint = "now"
    return PlaceNames(homes, mock.Mock(), mock.Mock())


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
        optimizer,
        lambda _: None,
        places.check_writing_state,
        lambda: None,
        places.expect_state,
        places.forget_sharded_names,
    )
    with pytest.raises(Unsupported, match="there was a reorder since attach"):
        optimizer.load_state_dict({})
    places.logical_experts(0)
    optimizer.sharded_state_dict({}, is_loading=True)  # by a load that ended before it reached the optimizer
    optimizer.sharded_state_dict({}, **is_loading)
    if is_refused:
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            optimizer.load_state_dict({})
    else:
        optimizer.load_state_dict({})
        places.forget_sharded_names()
        with pytest.raises(Unsupported, match="there was a reorder since attach"):
            optimizer.load_state_dict({})


def test_S9_a_local_checkpoint_that_no_restart_could_load_is_refused() -> None:
    homes = mock.Mock()
    homes.placement.moves_to.return_value = []
    places = PlaceNames(homes, mock.Mock(), mock.Mock())
    places.check_local_checkpoint()
    homes.placement.moves_to.return_value = ["a move"]
    with pytest.raises(Unsupported, match="save a global checkpoint"):
        places.check_local_checkpoint()
