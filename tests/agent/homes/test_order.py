"""Weights that bring an order along are accepted by all ranks or by none, before anything is written."""

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from relibra.agent.homes.by_place import PlaceNames
from relibra.agent.homes.order import ORDER, check_state_dicts
from relibra.errors import RelibraError, Unsupported

NOW = "now"


class Megatron(nn.Sequential):
    """A module that names its weights as megatron's modules do."""

    def sharded_state_dict(self, prefix: str = "", **_: Any) -> dict[str, Any]:
        named: dict[str, Any] = {}
        for name, each in self.named_children():
            if isinstance(each, Megatron):
                named |= each.sharded_state_dict(f"{prefix}{name}.")
            else:
                named |= {f"{prefix}{name}.{key}": value for key, value in each.state_dict().items()}
        return named


class Rank:
    """The checks of one rank, on a model of a dense layer and, on most ranks, two layers of experts after it.

    Args:
        has_moved: whether there was a reorder since `attach`.
        num_layers: of experts on this rank.
    """

    def __init__(self, *, has_moved: bool = True, num_layers: int = 2) -> None:
        self.homes, self.guard = mock.Mock(has_moved=has_moved), mock.Mock()
        self.homes.placement.fingerprint = NOW
        self.places = PlaceNames(self.homes, self.guard, mock.Mock())
        experts = [Megatron(nn.Linear(2, 2)) for _ in range(num_layers)]
        self.model = Megatron(nn.Linear(2, 2), *experts)
        self.undo: Callable[[], None] = check_state_dicts(
            self.model,
            experts,
            self.places.order,
            lambda each: each,
            lambda _: None,
            self.places.check_writing,
        )

    def state(self, order: str | None) -> dict[str, Any]:
        """Return ones for all weights, as if they had been named in an order; by place for None."""
        named = self.model.sharded_state_dict()
        changed = {key: order if key.endswith(ORDER) else torch.ones_like(value) for key, value in named.items()}
        return {key: value for key, value in changed.items() if value is not None}

    @property
    def is_written(self) -> bool:
        return any(bool((each == 1).all()) for each in self.model.parameters())


def test_all_parts_say_the_order() -> None:
    rank = Rank()
    assert {key for key, value in rank.model.sharded_state_dict().items() if value == NOW} == {
        ORDER,
        f"1.{ORDER}",
        f"2.{ORDER}",
    }
    copied = copy.deepcopy(rank.model)
    assert copied.sharded_state_dict()["0.weight"].data_ptr() == copied[0].weight.data_ptr()
    rank.undo()
    assert set(rank.model.sharded_state_dict()) == set(rank.model.state_dict())


@pytest.mark.parametrize("has_moved", [True, False])
@pytest.mark.parametrize("num_layers", [2, 0], ids=["with-experts", "a-stage-without-experts"])
def test_S9_weights_of_another_order_are_refused_by_every_rank_before_anything_is_written(
    num_layers: int, has_moved: bool
) -> None:
    """Also by ranks whose own experts have not moved, and after a second attach, before its first reorder."""
    rank = Rank(num_layers=num_layers, has_moved=has_moved)
    for is_strict in (True, False):  # megatron tries again without strictness
        with pytest.raises(Unsupported, match="named before experts moved, or under an earlier attach"):
            rank.model.load_state_dict(rank.state("before"), strict=is_strict)
    assert not rank.is_written
    rank.guard.forget.assert_not_called()
    rank.model.load_state_dict(rank.state(NOW))
    assert rank.is_written
    rank.guard.forget.assert_called()


def test_S9_state_of_which_one_layer_has_another_order_is_refused_before_anything_is_written() -> None:
    rank = Rank()
    with pytest.raises(Unsupported, match="named before experts moved"):
        rank.model.load_state_dict(rank.state(NOW) | {f"2.{ORDER}": "before"})
    by_place = rank.state(NOW)
    del by_place[f"2.{ORDER}"]
    with pytest.raises(Unsupported, match="there was a reorder since attach"):
        rank.model.load_state_dict(by_place)
    assert not rank.is_written


def test_S9_weights_by_place_are_loaded_before_the_first_reorder_only() -> None:
    rank = Rank()
    with pytest.raises(Unsupported, match="there was a reorder since attach"):
        rank.model.load_state_dict(rank.state(None))
    assert not rank.is_written
    rank.homes.has_moved = False
    rank.model.load_state_dict(rank.state(None))
    assert rank.is_written


def test_S9_a_part_of_the_model_is_checked_too() -> None:
    rank = Rank()
    with pytest.raises(Unsupported, match="named before experts moved"):
        rank.model[1].load_state_dict(rank.model[1].sharded_state_dict() | {ORDER: "before"})
    rank.model[1].load_state_dict(rank.model[1].sharded_state_dict())


def test_S9_nothing_is_written_while_experts_are_lent() -> None:
    """The names stand for the original places then, and the experts are at home elsewhere."""
    rank = Rank()
    rank.homes.check_at_home.side_effect = RelibraError("leave the `with`")
    with pytest.raises(RelibraError, match="leave the `with`"):
        rank.model.load_state_dict(rank.state(NOW))
    assert not rank.is_written
    rank.guard.forget.assert_not_called()


def test_a_load_without_experts_is_not_refused() -> None:
    rank = Rank()
    rank.model.load_state_dict({"0.weight": torch.ones(2, 2)}, strict=False)
    assert rank.is_written
