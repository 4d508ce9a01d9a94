"""The micro-batch that a forward belongs to, also in a recomputation long after the forward."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.replay import GivenExperts


class RealisedLoad:
    """The token copies that one rank computed in one phase, int64 `[M, L]`. It grows if more micro-batches run."""

    def __init__(self, num_micro_batches: int, num_layers: int) -> None:
        self._load_ML = np.zeros((num_micro_batches, num_layers), dtype=np.int64)
        self._unread: dict[tuple[int, int], Tensor] = {}

    @property
    def load_ML(self) -> NDArray[np.int64]:
        """A copy of the counts so far. The host waits for those that are on a device."""
        if self._unread:
            micro_batch_C, layer_C = np.array(list(self._unread)).T
            self._grow(int(micro_batch_C.max()) + 1)
            counts = [each.reshape(-1) for each in self._unread.values()]
            end_C = np.cumsum([len(each) for each in counts])
            total = np.concatenate([[0], torch.cat(counts).cpu().numpy().cumsum()])
            self._load_ML[micro_batch_C, layer_C] = np.diff(total[end_C], prepend=0)
            self._unread.clear()
        return self._load_ML.copy()

    def add(self, load_ML: NDArray[np.int64]) -> None:
        """Add the counts of another rank."""
        self._grow(len(load_ML))
        self._load_ML[: len(load_ML)] += load_ML

    def record(self, micro_batch: int, layer: int, num_tokens: Tensor) -> None:
        """Set the count of one cell to the sum of a tensor. A recomputation sets the same count again.

        The tensor is kept, on any device, and read with all others by `load_ML`, so that a cell costs no operation.
        Nobody may write into it meanwhile.
        """
        self._unread[micro_batch, layer] = num_tokens

    def _grow(self, num_micro_batches: int) -> None:
        missing = num_micro_batches - len(self._load_ML)
        if missing > 0:
            self._load_ML = np.pad(self._load_ML, ((0, missing), (0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The micro-batch as layers see it. A checkpointed region keeps it until its recomputation."""

    owner: object
    index: int
    cells: StepCells
    realised: RealisedLoad | None
    given_experts: GivenExperts | None = None
    """The experts of this rank's tokens in every MoE layer, on the device; None if the routers decide."""
    given: GivenRouting = field(default_factory=GivenRouting)
    """Compares `given_experts` with what the routers choose."""
    share_P: dict[int, Tensor] = field(default_factory=dict)
    """By layer, how this rank's tokens were split over the slots. A recomputation uses the split of its forward."""
    is_checkpointed: bool = False
    """Whether it runs inside a region whose activations are recomputed."""


_current: ContextVar[MicroBatch | None] = ContextVar("relibra_micro_batch", default=None)


def current(owner: object) -> MicroBatch | None:
    """Return the micro-batch that runs now, if `owner` opened it."""
    micro_batch = _current.get()
    return micro_batch if micro_batch is not None and micro_batch.owner is owner else None


def current_of_any() -> MicroBatch | None:
    """Return the micro-batch that runs now, of any owner."""
    return _current.get()


@contextmanager
def running(micro_batch: MicroBatch | None) -> Iterator[None]:
    """Run the body as part of `micro_batch`."""
    token = _current.set(micro_batch)
    try:
        yield
    finally:
        _current.reset(token)
