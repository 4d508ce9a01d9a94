"""The micro-batch that a forward belongs to, also in a recomputation long after the forward."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.routed_tokens import RoutedTokens


class RealisedLoad:
    """The token copies that one rank computed in one phase, int64 `[M, L]`. It grows if more micro-batches run."""

    def __init__(self, num_micro_batches: int, num_layers: int) -> None:
        self._load_ML = np.zeros((num_micro_batches, num_layers), dtype=np.int64)

    @property
    def load_ML(self) -> NDArray[np.int64]:
        """A copy of the counts so far."""
        return self._load_ML.copy()

    @classmethod
    def of(cls, load_ML: NDArray[np.int64]) -> "RealisedLoad":
        """Return an object with these counts."""
        load = cls(*load_ML.shape)
        load._load_ML[:] = load_ML
        return load

    def grow(self, num_micro_batches: int) -> None:
        """Make room for at least `num_micro_batches`."""
        missing = num_micro_batches - len(self._load_ML)
        if missing > 0:
            self._load_ML = np.pad(self._load_ML, ((0, missing), (0, 0)))

    def record(self, micro_batch: int, layer: int, num_tokens: int) -> None:
        """Set one count. A recomputation sets the same count again."""
        self.grow(micro_batch + 1)
        self._load_ML[micro_batch, layer] = num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The micro-batch as layers see it. A checkpointed region keeps it until its recomputation."""

    owner: object
    index: int
    cells: StepCells
    realised: RealisedLoad | None
    routed: RoutedTokens | None = None
    """Counts what the routers choose; None if the plan does not say what it expects."""
    routed_LTK: Tensor | None = None
    """The experts of this rank's tokens in every MoE layer; None if the routers decide."""
    given: GivenRouting = field(default_factory=GivenRouting)
    """Compares `routed_LTK` with what the routers choose."""
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
