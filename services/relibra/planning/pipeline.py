"""The order in which the stages of a pipeline run their micro-batches: Megatron's 1F1B, plain or interleaved.

A stage holds one or more chunks of the model. A pass is the forward or the backward of one chunk on one micro-batch.
Source: `megatron.core.pipeline_parallel.schedules`.

F forward passes of a stage in their order, T passes of both kinds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """All passes of a stage in an update phase, in the order in which they run."""

    micro_batch_T: NDArray[np.int64]
    chunk_T: NDArray[np.int64]
    is_forward_T: NDArray[np.bool_]

    def of_chunks(self, chunks: NDArray[np.integer]) -> "Passes":
        """Return the passes of these chunks alone."""
        is_one_T = np.isin(self.chunk_T, chunks)
        return Passes(
            micro_batch_T=self.micro_batch_T[is_one_T],
            chunk_T=self.chunk_T[is_one_T],
            is_forward_T=self.is_forward_T[is_one_T],
        )


def passes_of(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> Passes:
    """Return the passes of a stage.

    Args:
        stage: the stage, from 0.
        num_stages: the stages of the pipeline; with 1, every forward is followed by its backward.
        num_chunks: the chunks of the model that every stage holds; more than 1 are interleaved.
        num_micro_batches: the micro-batches of the step.
    """
    micro_batch_F, chunk_F = np.divmod(np.arange(num_micro_batches * num_chunks), num_chunks)
    # As many micro-batches as there are stages go through the first chunk, then through the next, and so on.
    order_F = np.lexsort((micro_batch_F, chunk_F, micro_batch_F // num_stages))
    micro_batch_F, chunk_F = micro_batch_F[order_F], chunk_F[order_F]
    ahead = num_stages - stage - 1
    if num_chunks > 1:
        ahead = 2 * ahead + (num_chunks - 1) * num_stages
    # After the forwards that run ahead, one forward and one backward take turns.
    forward_at_F, backward_at_F = 2 * np.arange(len(order_F)) - ahead, 2 * np.arange(len(order_F)) + 1 + ahead
    order_T = np.argsort(np.concatenate([forward_at_F, backward_at_F]), kind="stable")
    return Passes(
        micro_batch_T=np.concatenate([micro_batch_F, micro_batch_F])[order_T],
        chunk_T=np.concatenate([chunk_F, num_chunks - 1 - chunk_F])[order_T],
        is_forward_T=order_T < len(order_F),
    )
