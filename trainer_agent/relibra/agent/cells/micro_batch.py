"""The micro-batch that a forward belongs to, also in a recomputation long after the forward."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.counts_ahead import CellAhead, CountsAhead
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.replay import GivenExperts
from relibra.agent.cells.shapes_ahead import CellShapes
from relibra.planning.execution import sample_micro_batches
from relibra.planning.load import narrow_counts


class RealisedLoad:
    """The token copies that one rank computed in one phase. It grows if more micro-batches run.

    M micro-batches, N of them, L layers, E experts, P slots of this rank in a cell.
    """

    def __init__(self, num_micro_batches: int, num_layers: int, num_experts: int) -> None:
        self._load_ML = np.zeros((num_micro_batches, num_layers), dtype=np.int64)
        self._num_experts = num_experts
        self._by_slot: dict[tuple[int, int], tuple[Tensor, StepCells]] = {}
        """By cell, the tokens of every slot that the rank computes, and what says which expert is in the slot."""
        self._unread: dict[tuple[int, int], Tensor] = {}

    @property
    def load_ML(self) -> NDArray[np.int64]:
        """A copy of the counts so far. The host waits for those that are on a device."""
        if self._unread:
            micro_batch_C, layer_C = np.array(list(self._unread)).T
            self._grow(int(micro_batch_C.max()) + 1)
            total, end_C = _read(self._unread.values())
            total = np.concatenate([[0], total.cumsum()])
            self._load_ML[micro_batch_C, layer_C] = np.diff(total[end_C], prepend=0)
            self._unread.clear()
        return self._load_ML.copy()

    @property
    def expert_load_NLE(self) -> NDArray[np.unsignedinteger]:
        """The counts by expert in the micro-batches of `sampled`, `[N, L, E]`. The host waits for the device."""
        chosen_N = sample_micro_batches(len(self.load_ML))
        place = {int(micro_batch): index for index, micro_batch in enumerate(chosen_N)}
        by_slot = {cell: counts for cell, counts in self._by_slot.items() if cell[0] in place}
        load_NLE = np.zeros((len(chosen_N), self._load_ML.shape[1], self._num_experts), dtype=np.uint32)
        if by_slot:
            tokens, end_C = _read(tokens_P for tokens_P, _ in by_slot.values())
            for ((micro_batch, layer), (_, cells)), of_slot in zip(
                by_slot.items(), np.split(tokens, end_C[:-1]), strict=True
            ):
                used = np.flatnonzero(of_slot)  # other slots may hold no expert
                expert_of = cells.slot_experts(micro_batch, layer)[used]
                load_NLE[place[micro_batch], layer, expert_of] = of_slot[used]  # a rank holds an expert once
        return narrow_counts(load_NLE)

    def record(
        self, micro_batch: int, layer: int, tokens_P: Tensor, cells: StepCells, num_tokens: Tensor | None = None
    ) -> None:
        """Set the counts of one cell. A recomputation sets the same counts again.

        The tensors are kept, on any device, and read with all others, so that a cell costs no operation. Nobody may
        write into them meanwhile.

        Args:
            micro_batch: the micro-batch of the cell.
            layer: its layer.
            tokens_P: the tokens of every slot of this rank.
            cells: the cells of the step.
            num_tokens: a tensor whose sum counts as load, where `tokens_P` counts more than that.
        """
        self._unread[micro_batch, layer] = tokens_P if num_tokens is None else num_tokens
        self._by_slot[micro_batch, layer] = tokens_P, cells

    def _grow(self, num_micro_batches: int) -> None:
        missing = num_micro_batches - len(self._load_ML)
        if missing > 0:
            self._load_ML = np.pad(self._load_ML, ((0, missing), (0, 0)))


def _read(counts: Iterable[Tensor]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the elements of tensors one after the other, and where each tensor ends.

    Those on a device come in one transfer. Others are on the host already, as where a replay told them.
    """
    flat = [count.reshape(-1) for count in counts]
    sizes = [len(count) for count in flat]
    if on_device := [place for place, count in enumerate(flat) if count.device.type != "cpu"]:
        moved = torch.cat([flat[place] for place in on_device]).cpu()
        for place, count in zip(on_device, torch.split(moved, [sizes[place] for place in on_device]), strict=True):
            flat[place] = count
    return torch.cat(flat).numpy().astype(np.int64), np.cumsum(sizes)


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
    counts_ahead: CountsAhead = field(default_factory=CountsAhead)
    """Compares what a replay told before the forward with what the routers choose."""
    ahead: dict[int, CellAhead] = field(default_factory=dict)
    """By layer, what is known of its cell in the present forward. The router's choice ends it."""
    share_P: dict[int, Tensor] = field(default_factory=dict)
    """By layer, how this rank's tokens were split over the slots. A recomputation uses the split of its forward."""
    shapes: dict[int, CellShapes | None] = field(default_factory=dict)
    """By layer, what ranks exchange in its cell, for a forward and its recomputation; None if its dispatcher finds it
    out."""
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
