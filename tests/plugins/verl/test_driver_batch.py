"""Batches of verl's two trainers, in the form that both have for relibra."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from relibra.errors import InvalidInput
from relibra.plugins.verl.driver_batch import driver_batch

ROWS = [torch.arange(1, 1 + 2 * length, dtype=torch.int16).reshape(length, 1, 2) for length in (3, 1, 2)]
"""The routed experts of three sequences, `[T, X, K]`."""


class Proto:
    """A `DataProto` whose sequences have a place of padding on the left."""

    def __init__(self, **changed: Any) -> None:
        padded = torch.zeros(len(ROWS), 4, 1, 2, dtype=torch.int16)
        mask = torch.zeros(len(ROWS), 4, dtype=torch.int64)
        for index, rows in enumerate(ROWS):
            padded[index, 1 : 1 + len(rows)], mask[index, 1 : 1 + len(rows)] = rows, 1
        self.batch = {"attention_mask": mask, "routed_experts": padded} | changed
        self.order: list[int] = []

    def reorder(self, indices: torch.Tensor) -> None:
        self.order = indices.tolist()


class Meta:
    """A `KVBatchMeta`."""

    keys, partition_id = ("a", "b", "c"), "train"
    tags = tuple({"seq_len": len(rows)} for rows in ROWS)

    def __init__(self) -> None:
        self.order: list[int] = []

    def reorder(self, indexes: list[int]) -> None:
        self.order = indexes


def module_with(field: Any) -> Any:
    """Stand in for the module of the newer trainer, whose queue has the routing of all sequences."""

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert (keys, partition_id, select_fields) == (["a", "b", "c"], "train", ["routed_experts"])
        if field is None:
            raise KeyError("routed_experts")
        return {"routed_experts": field}

    return SimpleNamespace(tq=SimpleNamespace(kv_batch_get=kv_batch_get))


@pytest.mark.parametrize(
    ("batch", "module"),
    [
        (Proto(), SimpleNamespace()),
        (Meta(), module_with(torch.nested.as_nested_tensor(ROWS, layout=torch.jagged))),
        (Meta(), module_with(ROWS)),
    ],
)
def test_lengths_and_routing_are_those_of_the_tokens(batch: Any, module: Any) -> None:
    found = driver_batch(batch, module)
    assert found.length_S.tolist() == [3, 1, 2]
    for got, expected in zip(found.routing(), ROWS, strict=True):
        np.testing.assert_array_equal(got, expected.numpy())
    found.reorder(np.array([2, 0, 1]))
    assert batch.order == [2, 0, 1]


@pytest.mark.parametrize(
    ("batch", "module"),
    [(SimpleNamespace(batch={"attention_mask": None}), SimpleNamespace()), (Meta(), module_with(None))],
)
def test_S9_a_batch_without_routing_is_refused_with_the_setting_that_brings_it(batch: Any, module: Any) -> None:
    with pytest.raises(InvalidInput, match=r"routed_experts: .*enable_rollout_routing_replay=True"):
        driver_batch(batch, module).routing()
