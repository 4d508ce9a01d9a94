"""The batches of verl's driver in one form: a `DataProto` of the older trainer, keys of a TransferQueue of the newer.

S sequences, T tokens of one of them, X layers of the rollout engine, K experts of a token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import as_integers

ROUTING = "routed_experts"


class DriverBatch(Protocol):
    """A batch in the order of verl's driver."""

    @property
    def length_S(self) -> NDArray[np.int64]:
        """The tokens of every sequence."""

    def routing(self) -> list[NDArray[np.integer]]:
        """Return the routed experts of every sequence, `[T, X, K]`, with fillers where the rollout has none.

        Raises:
            InvalidInput: the rollout recorded no routing.
        """

    def reorder(self, order_S: NDArray[np.int64]) -> None:
        """Bring the sequences into another order."""


def driver_batch(batch: Any, trainer: ModuleType) -> DriverBatch:
    """Return a batch of one of verl's trainers.

    Args:
        batch: the batch that `_balance_batch` was called with, or that it returned.
        trainer: the module of the trainer.
    """
    return KeyedBatch(batch, trainer.tq) if hasattr(batch, "tags") else PaddedBatch(batch)


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A `DataProto`, whose sequences are padded on both sides."""

    proto: Any

    @property
    def length_S(self) -> NDArray[np.int64]:
        """The tokens of every sequence."""
        return np.asarray(self.proto.batch["attention_mask"].sum(-1), dtype=np.int64)

    def routing(self) -> list[NDArray[np.integer]]:
        """Return the routed experts of every sequence."""
        if ROUTING not in self.proto.batch.keys():  # noqa: SIM118 (a TensorDict refuses `in`)
            raise _without_routing("none")
        # A view of each: padding is on both sides of a sequence and nowhere else.
        first_S = self.proto.batch["attention_mask"].argmax(-1).tolist()
        padded = as_integers(self.proto.batch[ROUTING], ROUTING)
        return [
            rows[first : first + length]
            for rows, first, length in zip(padded, first_S, self.length_S.tolist(), strict=True)
        ]

    def reorder(self, order_S: NDArray[np.int64]) -> None:
        """Bring the sequences into another order."""
        import torch

        self.proto.reorder(torch.from_numpy(order_S))


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """A `KVBatchMeta`: keys and tags of sequences that are in a TransferQueue."""

    meta: Any
    queue: Any
    """verl's module `transfer_queue`."""

    @property
    def length_S(self) -> NDArray[np.int64]:
        """The tokens of every sequence."""
        return np.array([tag["seq_len"] for tag in self.meta.tags], dtype=np.int64)

    def routing(self) -> list[NDArray[np.integer]]:
        """Return the routed experts of every sequence, fetched from the queue."""
        try:
            data = self.queue.kv_batch_get(
                keys=list(self.meta.keys), partition_id=self.meta.partition_id, select_fields=[ROUTING]
            )
        except Exception as error:  # the queue has no class of its own for a field that is missing
            raise _without_routing(f"{type(error).__name__}: {error}") from error
        return list(_sequences(data[ROUTING]))

    def reorder(self, order_S: NDArray[np.int64]) -> None:
        """Bring the sequences into another order."""
        self.meta.reorder(order_S.tolist())


def _sequences(field: Any) -> Iterator[NDArray[np.integer]]:
    if not getattr(field, "is_nested", False):
        yield from (as_integers(rows, ROUTING) for rows in field)
        return
    rows_TXK = as_integers(field.values(), ROUTING)
    offsets = as_integers(field.offsets(), f"{ROUTING}.offsets").tolist()
    yield from (rows_TXK[first:end] for first, end in pairwise(offsets))


def _without_routing(got: str) -> InvalidInput:
    return InvalidInput.of(
        ROUTING,
        expected="the routing of the rollout in the batch (rollout.enable_rollout_routing_replay=True), from which "
        "relibra knows where the experts of a sequence are",
        got=got,
    )
