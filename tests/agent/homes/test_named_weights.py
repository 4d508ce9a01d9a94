"""Tensors under names are written completely or not at all."""

import pytest
import torch

from relibra.agent.homes.named_weights import check_named, write_named
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
        pytest.param({"a": torch.ones(2), "b": [1.0, 1.0]}, "b: expected a tensor, got list", id="no tensor"),
    ],
)
def test_S9_incomplete_or_misshapen_weights_are_refused_before_anything_is_written(
    given: dict[str, torch.Tensor], message: str
) -> None:
    own = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(InvalidInput, match=message):
        check_named(own, given)
