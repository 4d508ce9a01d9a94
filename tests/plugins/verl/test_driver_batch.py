"""What verl's driver reads of a batch in a TransferQueue."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from relibra.errors import InvalidInput
from relibra.plugins.verl.driver_batch import routing_of

ROWS = [torch.arange(1, 1 + 2 * length, dtype=torch.int16).reshape(length, 1, 2) for length in (3, 1, 2)]
"""The routed experts of three sequences, `[T, X, K]`."""
BATCH = SimpleNamespace(keys=("a", "b", "c"), partition_id="train")


def queue_of(field: Any) -> Any:
    """Stand in for the queue, which has the routing of all sequences."""

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert (keys, partition_id, select_fields) == (["a", "b", "c"], "train", ["routed_experts"])
        if field is None:
            raise KeyError("routed_experts")
        return {"routed_experts": field}

    return SimpleNamespace(kv_batch_get=kv_batch_get)


@pytest.mark.parametrize("field", [torch.nested.as_nested_tensor(ROWS, layout=torch.jagged), ROWS])
def test_the_routing_is_that_of_every_sequence(field: Any) -> None:
    for got, expected in zip(routing_of(BATCH, queue_of(field)), ROWS, strict=True):
        np.testing.assert_array_equal(got, expected.numpy())


def test_S9_a_batch_without_routing_is_refused_with_the_setting_that_brings_it() -> None:
    with pytest.raises(InvalidInput, match=r"routed_experts: .*enable_rollout_routing_replay=True"):
        routing_of(BATCH, queue_of(None))
