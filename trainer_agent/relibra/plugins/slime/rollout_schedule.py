"""The schedule of a rollout in slime and miles: training steps, data-parallel ranks and micro-batches of its samples.

Their drivers form all of these before training starts. Training steps stay as they are. Within one, samples may change
micro-batch and rank: every sample adds to the loss by itself, and is divided by numbers of its whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relibra.steps.packing import Dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSchedule:
    """What `build_dp_schedule` returns first."""

    partitions: Sequence[Sequence[int]]
    """The samples of every data-parallel rank."""
    micro_batch_indices: Sequence[Sequence[Sequence[int]]]
    """For every rank, a list of places in its partition for each micro-batch of all training steps."""
    num_microbatches: Sequence[int]
    """The micro-batches of every training step on each rank."""

    def steps(self) -> list[Dealt]:
        """Return how the samples of every training step are dealt."""
        ends = np.cumsum(self.num_microbatches).tolist()
        return [
            [
                [[partition[place] for place in places] for places in indices[end - num : end]]
                for partition, indices in zip(self.partitions, self.micro_batch_indices, strict=True)
            ]
            for end, num in zip(ends, self.num_microbatches, strict=True)
        ]

    @classmethod
    def of(cls, steps: Sequence[Dealt]) -> "RolloutSchedule":
        """Return the schedule that deals the samples of every training step so."""
        partitions: list[list[int]] = [[] for _ in steps[0]]
        micro_batch_indices: list[list[list[int]]] = [[] for _ in steps[0]]
        for dealt in steps:
            for partition, indices, of_rank in zip(partitions, micro_batch_indices, dealt, strict=True):
                for samples in of_rank:
                    indices.append(list(range(len(partition), len(partition) + len(samples))))
                    partition.extend(samples)
        return cls(
            partitions=partitions,
            micro_batch_indices=micro_batch_indices,
            num_microbatches=[len(dealt[0]) for dealt in steps],
        )
