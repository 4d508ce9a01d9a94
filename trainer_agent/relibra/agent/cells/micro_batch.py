"""Which micro-batch a forward belongs to, wherever and whenever the layer runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells


class RealisedLoad:
    """Token copies one rank computed in one phase, int64 `[M, L]`; grows where more micro-batches run than planned."""

    def __init__(self, num_micro_batches: int, num_layers: int) -> None:
        self._load_ML = np.zeros((num_micro_batches, num_layers), dtype=np.int64)

    @property
    def load_ML(self) -> NDArray[np.int64]:
        """A copy of the counts so far."""
        return self._load_ML.copy()

    @classmethod
    def of(cls, load_ML: NDArray[np.int64]) -> "RealisedLoad":
        """Begin with counts that are known."""
        load = cls(*load_ML.shape)
        load._load_ML[:] = load_ML
        return load

    def grow(self, num_micro_batches: int) -> None:
        """Have room for at least that many micro-batches."""
        missing = num_micro_batches - len(self._load_ML)
        if missing > 0:
            self._load_ML = np.pad(self._load_ML, ((0, missing), (0, 0)))

    def record(self, micro_batch: int, layer: int, num_tokens: int) -> None:
        """Set one count; a recomputation sets the same value again."""
        self.grow(micro_batch + 1)
        self._load_ML[micro_batch, layer] = num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What a layer needs to know; kept by a checkpointed region until its recomputation."""

    agent: object
    index: int
    cells: StepCells
    realised: RealisedLoad | None
    routed_LTK: Tensor | None = None
    """Experts of this rank's tokens in every MoE layer; None where the routers decide."""
    is_checkpointed: bool = False
    """Inside a region whose activations are recomputed."""


_current: ContextVar[MicroBatch | None] = ContextVar("relibra_micro_batch", default=None)


def current(agent: object) -> MicroBatch | None:
    """Return the micro-batch that runs now, if it was opened by `agent`."""
    micro_batch = _current.get()
    return micro_batch if micro_batch is not None and micro_batch.agent is agent else None


def current_of_any() -> MicroBatch | None:
    """Return the micro-batch that runs now, whoever opened it."""
    return _current.get()


@contextmanager
def running(micro_batch: MicroBatch | None) -> Iterator[None]:
    """Run the body as part of `micro_batch`."""
    token = _current.set(micro_batch)
    try:
        yield
    finally:
        _current.reset(token)
