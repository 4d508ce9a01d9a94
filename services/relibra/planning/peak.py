"""The hottest rank of a step: how many more token copies than the mean rank it has, and the memory that they take.

Its memory is that of one layer while the layer runs, and that of all micro-batches that a pipeline has under way. The
two factors are those that Megatron logs (`moe/max_overload_factor` and `moe/max_cum_overload_factor`,
NVIDIA/Megatron-LM 4110).

M rows: m micro-batches of each of G EP groups, L layers, R EP ranks, P stages, C chunks of a stage, T passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning.load import overload_factor
from relibra.planning.memory import ActivationMemory
from relibra.planning.pipeline import passes_of

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The hottest rank of a step."""

    overload: float = 1.0
    """Its token copies over those of the mean rank, in the cell where that is most: `max_overload_factor`."""
    cum_overload: float = 1.0
    """The most token copies that a rank keeps at once, over those of the mean rank: `max_cum_overload_factor`."""
    size_bytes: int | None = None
    """The most that a rank takes; None where the bytes of a token copy are not known."""
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
    """What a plan promises of memory. Below level micro-batches, for micro-batches like those it was made from."""

    before: Peak
    """Under the identity placement without replicas."""
    after: Peak
    """Under the plan."""
    budget_bytes: int = 0
    """The most that a rank may take; 0 where there is no budget."""

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
        where = f"EP rank {peak.rank} of EP group {peak.ep_group} in micro-batch {peak.micro_batch}"
        return (
            f"activations of experts need {size_bytes / _GIB:.2f} GiB on {where}, and the budget is "
            f"{self.budget_bytes / _GIB:.2f} GiB: micro-batches with {self.budget_bytes / size_bytes:.0%} of these "
            "tokens would fit"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The token copies that the ranks of one stage hold during every pass of an update phase."""

    micro_batch_T: NDArray[np.int64]
    kept_TR: NDArray[np.int64]
    """In all layers, for backward passes still to come. At the end of a forward and at the beginning of a backward."""
    running_TR: NDArray[np.int64]
    """In the largest layer of the pass."""

    def size_TR(self, memory: ActivationMemory) -> NDArray[np.int64]:
        """Return the bytes that they take."""
        return self.kept_TR * memory.kept_bytes + self.running_TR * memory.working_bytes


def held_copies(loads_mLR: NDArray[np.integer], memory: ActivationMemory, stage: int) -> Held:
    """Return what the ranks of a stage hold, from the token copies that they compute in every cell of an EP group.

    Raises:
        InvalidInput: `memory` is of a model with another number of layers.
    """
    num_micro_batches, num_layers, num_ranks = loads_mLR.shape
    chunks = memory.layers_of(stage, num_layers)
    passes = passes_of(stage, memory.num_stages, len(chunks), num_micro_batches)
    passes = passes.of_chunks(np.flatnonzero([layers.start < layers.stop for layers in chunks]))
    all_CmR, most_CmR = np.zeros((2, len(chunks), num_micro_batches, num_ranks), dtype=np.int64)
    for chunk, layers in enumerate(chunks):
        all_CmR[chunk] = loads_mLR[:, layers].sum(axis=1)
        most_CmR[chunk] = loads_mLR[:, layers].max(axis=1, initial=0)
    all_TR = all_CmR[passes.chunk_T, passes.micro_batch_T]
    is_forward_T1 = passes.is_forward_T[:, None]
    kept_TR = np.cumsum(np.where(is_forward_T1, all_TR, -all_TR), axis=0)
    return Held(
        micro_batch_T=passes.micro_batch_T,
        kept_TR=np.where(is_forward_T1, kept_TR, kept_TR + all_TR),
        running_TR=most_CmR[passes.chunk_T, passes.micro_batch_T],
    )


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
    loads_GmLR = loads_MLR.reshape(num_ep_groups, num_rows // num_ep_groups, num_layers, num_ranks)
    peaks = [
        _peak_of_stage(loads_mLR, memory, ep_group, stage)
        for ep_group, loads_mLR in enumerate(loads_GmLR)
        for stage in range(memory.num_stages)
    ]
    return replace(
        max(peaks, key=lambda peak: (peak.size_bytes or 0, peak.cum_overload)),
        overload=overload_factor(loads_MLR),
        cum_overload=max(peak.cum_overload for peak in peaks),
    )


def _peak_of_stage(loads_mLR: NDArray[np.integer], memory: ActivationMemory, ep_group: int, stage: int) -> Peak:
    """Return the hottest rank of a stage of one EP group."""
    held = held_copies(loads_mLR, memory, stage)
    if not len(held.micro_batch_T):
        return Peak(ep_group=ep_group, stage=stage)
    size_TR = held.size_TR(memory) if memory.is_known else held.kept_TR
    at, rank = np.unravel_index(size_TR.argmax(), size_TR.shape)
    balanced = held.kept_TR.mean(axis=1).max()
    return Peak(
        cum_overload=float(held.kept_TR.max() / balanced) if balanced else 1.0,
        size_bytes=int(size_TR[at, rank]) if memory.is_known else None,
        rank=int(rank),
        ep_group=ep_group,
        stage=stage,
        micro_batch=int(held.micro_batch_T[at]),
    )
