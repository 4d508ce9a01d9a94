"""How plug-ins give exported experts their own names; `tests/frameworks` exports from the frameworks' own models."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from relibra.errors import RelibraError, Unsupported
from relibra.plugins.logical_export import exporting, logical, logical_export
from relibra.plugins.slime.framework import MILES, SLIME
from relibra.routing import ModelLayers

LAYERS = ModelLayers(num_experts=4, top_k=2, is_moe=(False, True))
TABLE_LE = np.array([[2, 0, 3, 1]])
BY_PLACE = [("model.norm.weight", 9)] + [
    (f"model.layers.1.mlp.experts.{place}.up_proj.weight", place) for place in range(4)
]
LOGICAL = [("model.norm.weight", 9)] + [
    (f"model.layers.1.mlp.experts.{expert}.up_proj.weight", place) for place, expert in enumerate(TABLE_LE[0])
]


class Agent:
    """What an export asks of an agent, in order."""

    expert_of_place_LE = TABLE_LE

    def __init__(self) -> None:
        self.calls: list[str] = []

    def check_weights(self) -> None:
        self.calls.append("check")

    @contextmanager
    def copying(self) -> Iterator["Agent"]:
        self.calls.append("begin")
        yield self
        self.calls.append("end")


def test_S9_a_stream_gets_logical_names_while_it_is_read_and_all_ranks_check_weights_first() -> None:
    agent: Any = Agent()
    weights = logical_export(agent, LAYERS, iter(BY_PLACE))
    assert agent.calls == []  # only the first read is collective
    assert next(weights) == LOGICAL[0]
    assert agent.calls == ["check", "begin"]
    assert list(weights) == LOGICAL[1:]
    assert agent.calls == ["check", "begin", "end"]


def test_S9_a_whole_stream_without_experts_is_refused_and_a_part_is_taken() -> None:
    agent: Any = Agent()
    with pytest.raises(Unsupported, match="no tensor of experts at all, although experts have moved"):
        list(logical_export(agent, LAYERS, BY_PLACE[:1]))
    assert list(logical_export(agent, LAYERS, BY_PLACE[:1], is_whole=False)) == BY_PLACE[:1]


def test_a_rank_with_other_weights_begins_no_export() -> None:
    agent: Any = Agent()

    def refuse() -> None:
        raise RelibraError("rank 1 found other weights")

    agent.check_weights = refuse
    with pytest.raises(RelibraError, match="rank 1"), exporting(agent, LAYERS):
        pytest.fail("not reached")
    assert agent.calls == []


def test_slime_and_miles_send_renamed_lists_which_they_empty_themselves() -> None:
    def rename(weights: list[Any]) -> None:
        weights[:] = logical(list(weights), TABLE_LE, LAYERS)

    chunks = [BY_PLACE[1:3], BY_PLACE[3:]]
    sent = []
    for chunk in SLIME.renaming(lambda: iter([list(each) for each in chunks]), rename)():
        sent.append(list(chunk))
        chunk.clear()
    assert sent == [LOGICAL[1:3], LOGICAL[3:]]

    def send_bucket(named_tensors: list[Any], update: Any, pbar: Any) -> None:
        update(named_tensors, pbar)

    got: list[Any] = []
    MILES.renaming(send_bucket, rename)(list(BY_PLACE), lambda weights, pbar: got.append((list(weights), pbar)), "bar")
    assert got == [(LOGICAL, "bar")]
