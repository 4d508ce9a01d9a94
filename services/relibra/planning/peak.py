"""The hottest rank of a step: how many more token copies than the mean rank it has, and the memory that they take.

Its memory is that of one layer while the layer runs, and that of all micro-batches that a pipeline has under way. The
two factors are those that Megatron logs (`moe/max_overload_factor` and `moe/max_cum_overload_factor`,
NVIDIA/Megatron-LM 4110).

M rows: m micro-batches of each of G EP groups, L layers, R EP ranks, C chunks of a stage, T passes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning.load import overload_factor
from relibra.planning.memory import ActivationMemory
from relibra.planning.pipeline import Passes, passes_of

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The hottest rank of a step."""

    overload: float = 1.0
    """Its token copies over those of the mean rank, in the cell where that is most: `max_overload_factor`."""
    cum_overload: float = 1.0
    """The most token copies that a rank keeps at once, over those of the mean rank: `max_cum_overload_factor`."""
    size_bytes: int | None = None
    """The most that a rank takes; None where that is not known."""
    rank: int = 0
    """The EP rank that takes the most."""
    ep_group: int = 0
    """Its EP group."""
    stage: int = 0
    """Its pipeline stage."""
    micro_batch: int = 0
    """The micro-batch that it runs then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """What a plan promises of memory. At level history it is that of the micro-batches that the plan was made from.

    At level step nobody knows how large micro-batches will be, so there are factors and no bytes.
    """

    before: Peak
    """Under the identity placement without replicas."""
    after: Peak
    """Under the plan."""
    budget_bytes: int = 0
    """The most that a rank may take; 0 where there is no budget."""
    margin: float = 1.0
    """What the bytes under the plan were multiplied with, because the step has other micro-batches."""

    def __post_init__(self) -> None:
        for field in ("before", "after"):  # JSON gives a mapping
            if isinstance(value := getattr(self, field), Mapping):
                object.__setattr__(self, field, Peak(**value))

    @property
    def excess(self) -> str:
        """Which rank takes more than the budget, when, and what would fit, for people; empty where none does (M1)."""
        peak, size_bytes = self.after, self.after.size_bytes or 0
        if not 0 < self.budget_bytes < size_bytes:
            return ""
        where = f"EP rank {peak.rank} of EP group {peak.ep_group}, pipeline stage {peak.stage}"
        return (
            f"activations of experts need {size_bytes / _GIB:.2f} GiB on {where}, in micro-batch {peak.micro_batch}, "
            f"and the budget is {self.budget_bytes / _GIB:.2f} GiB: micro-batches with "
            f"{100 * self.budget_bytes // size_bytes} % of these tokens would fit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one stage of a pipeline runs in an update phase."""

    chunks: Sequence[slice]
    """The layers of its chunks."""
    passes: Passes
    """Those of chunks that have layers."""

    @classmethod
    def of(cls, memory: ActivationMemory, stage: int, num_micro_batches: int, num_layers: int) -> "Stage":
        """Return a stage.

        Raises:
            InvalidInput: `memory` is of a model with another number of layers.
        """
        chunks = memory.layers_of(stage, num_layers)
        passes = passes_of(stage, memory.num_stages, len(chunks), num_micro_batches)
        return cls(
            chunks=chunks, passes=passes.of_chunks(np.flatnonzero([layers.start < layers.stop for layers in chunks]))
        )

    @classmethod
    def all_of(cls, memory: ActivationMemory, num_micro_batches: int, num_layers: int) -> list["Stage"]:
        """Return all stages; the errors are those of `of`."""
        return [cls.of(memory, stage, num_micro_batches, num_layers) for stage in range(memory.num_stages)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The token copies that the ranks of one stage hold during every pass of an update phase."""

    kept_TR: NDArray[np.int64]
    """In all layers, for backward passes still to come. At the end of a forward and at the beginning of a backward."""
    running_TR: NDArray[np.int64]
    """In the largest layer of the pass."""

    @classmethod
    def of(cls, loads_mLR: NDArray[np.integer], stage: Stage) -> "Held":
        """Return what ranks hold, from the token copies that they compute in every cell of an EP group."""
        num_micro_batches, _, num_ranks = loads_mLR.shape
        passes = stage.passes
        all_CmR, most_CmR = np.zeros((2, len(stage.chunks), num_micro_batches, num_ranks), dtype=np.int64)
        for chunk, layers in enumerate(stage.chunks):
            all_CmR[chunk] = loads_mLR[:, layers].sum(axis=1)
            most_CmR[chunk] = loads_mLR[:, layers].max(axis=1, initial=0)
        all_TR = all_CmR[passes.chunk_T, passes.micro_batch_T]
        is_forward_T1 = passes.is_forward_T[:, None]
        kept_TR = np.cumsum(np.where(is_forward_T1, all_TR, -all_TR), axis=0)
        return cls(
            kept_TR=np.where(is_forward_T1, kept_TR, kept_TR + all_TR),
            running_TR=most_CmR[passes.chunk_T, passes.micro_batch_T],
        )

    def size_TR(self, memory: ActivationMemory) -> NDArray[np.int64]:
        """Return the bytes that they take."""
        return self.kept_TR * memory.kept_bytes + self.running_TR * memory.working_bytes


def find_peak(loads_MLR: NDArray[np.integer], memory: ActivationMemory, num_ep_groups: int = 1) -> Peak:
    """Return the hottest rank of a step in its update phase.

    Args:
        loads_MLR: the token copies that every rank computes, rows of the EP groups one after the other.
        memory: what a token copy takes.
        num_ep_groups: the EP groups.

    Raises:
        InvalidInput: `memory` is of a model with another number of layers.
    """
    num_rows, num_layers, num_ranks = loads_MLR.shape
    num_micro_batches = num_rows // num_ep_groups
    stages = Stage.all_of(memory, num_micro_batches, num_layers)
    peaks = [
        replace(_peak_of_stage(loads_mLR, memory, stage), ep_group=ep_group, stage=number)
        for ep_group, loads_mLR in enumerate(loads_MLR.reshape(num_ep_groups, num_micro_batches, num_layers, num_ranks))
        for number, stage in enumerate(stages)
    ]
    return replace(
        max(peaks, key=lambda peak: (peak.size_bytes or 0, peak.cum_overload)),
        overload=overload_factor(loads_MLR),
        cum_overload=max(peak.cum_overload for peak in peaks),
    )


def _peak_of_stage(loads_mLR: NDArray[np.integer], memory: ActivationMemory, stage: Stage) -> Peak:
    """Return the hottest rank of a stage of one EP group."""
    if not len(stage.passes.chunk_T):
        return Peak()
    held = Held.of(loads_mLR, stage)
    size_TR = held.size_TR(memory) if memory.is_known else held.kept_TR
    at, rank = np.unravel_index(size_TR.argmax(), size_TR.shape)
    balanced = held.kept_TR.mean(axis=1).max()
    return Peak(
        cum_overload=float(held.kept_TR.max() / balanced) if balanced else 1.0,
        size_bytes=int(size_TR[at, rank]) if memory.is_known else None,
        rank=int(rank),
        micro_batch=int(stage.passes.micro_batch_T[at]),
    )
