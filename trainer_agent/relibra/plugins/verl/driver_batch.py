"""What verl's driver reads of a batch, whose sequences are in a TransferQueue."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import as_integers

_ROUTING = "routed_experts"


def routing_of(batch: Any, queue: Any) -> list[NDArray[np.integer]]:
    """Return the routed experts of every sequence of a `KVBatchMeta`, `[T, layers, K]`.

    Args:
        batch: the batch.
        queue: verl's module `transfer_queue`.

    Raises:
        InvalidInput: the rollout recorded no routing.
    """
    try:
        return fetch(queue, batch.partition_id, batch.keys, _ROUTING)
    except Exception as error:  # the queue has no class of its own for a field that is missing
        raise InvalidInput.of(
            _ROUTING,
            expected="the routing of the rollout in the batch (rollout.enable_rollout_routing_replay=True), from which "
            "relibra knows where the experts of a sequence are",
            got=f"{type(error).__name__}: {error}",
        ) from error


def fetch(queue: Any, partition: str, keys: Sequence[str], field: str) -> list[NDArray[np.integer]]:
    """Return a field of sequences, which holds integers, a row for each token.

    Args:
        queue: verl's module `transfer_queue`.
        partition: the partition of the sequences.
        keys: their keys.
        field: the name of the field.
    """
    of_all = queue.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=[field])[field]
    if not getattr(of_all, "is_nested", False):
        return [as_integers(rows, field) for rows in of_all]
    rows = as_integers(of_all.values(), field)
    offsets = as_integers(of_all.offsets(), f"{field}.offsets").tolist()
    return [rows[first:end] for first, end in pairwise(offsets)]
