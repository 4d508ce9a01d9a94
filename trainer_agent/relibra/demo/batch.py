"""The rollout of a step as training gets it: sequences with their routing and rewards, and their schedule.

S sequences, T rows of a sequence (tokens - 1), L MoE layers, K top-k.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.demo.shape import NUM_MICRO_BATCHES, SEQUENCES_PER_RANK
from relibra.planning import Schedule

Weights = dict[str, NDArray[np.float32]]
"""Parameters by name, as a model without expert parallelism (EP 1) names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's rollout, in data-set order."""

    tokens: NDArray[np.int64]
    """`[S, T + 1]`"""
    routed_experts: NDArray[np.uint8]
    """`[S, T, L, K]`, recorded by the rollout worker; the last token of a sequence never passes through the model."""
    rewards: NDArray[np.float64]
    """`[S]`"""
    advantages: NDArray[np.float64]
    """`[S]`"""

    def select(self, index: NDArray[np.integer]) -> "Batch":
        """Return a batch of the sequences with these indices."""
        return Batch(
            tokens=self.tokens[index],
            routed_experts=self.routed_experts[index],
            rewards=self.rewards[index],
            advantages=self.advantages[index],
        )

    def num_different(self, other: "Batch") -> int:
        """Count the sequences whose tokens or routing (as sets of experts) differ from those in `other`."""
        same_tokens_S = (self.tokens == other.tokens).all(axis=1)
        same_routing = np.sort(self.routed_experts, axis=-1) == np.sort(other.routed_experts, axis=-1)
        return int((~(same_tokens_S & same_routing.all(axis=(1, 2, 3)))).sum())


def sequence_ids(num_sequences: int) -> list[str]:
    """Return the ids of the sequences of a step."""
    return [f"seq-{index:03d}" for index in range(num_sequences)]


def schedule_in_order(num_sequences: int, num_ranks: int) -> Schedule:
    """Assign sequences in data-set order; all responses to a prompt go to one source rank in one micro-batch."""
    group_S = np.arange(num_sequences, dtype=np.int32) // SEQUENCES_PER_RANK
    return Schedule(
        micro_batch_S=group_S // np.int32(num_ranks) % np.int32(NUM_MICRO_BATCHES),
        source_rank_S=group_S % np.int32(num_ranks),
        ep_group_S=np.zeros(num_sequences, dtype=np.int32),
    )
