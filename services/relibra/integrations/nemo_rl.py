"""NeMo-RL: one global batch of a shard, as a policy worker takes it from `SlicedDataDict.get_batch`.

Written against NVIDIA-NeMo/RL 7ea279a (`nemo_rl/distributed/batched_data_dict.py`, `nemo_rl/models/megatron/data.py`).
The adapter reads `routed_experts` `[B, S, layers, K]` and `input_lengths` `[B]` of the batch, and the attribute
`micro_batch_indices`, which holds one list of (first, end) for its one global batch.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.routing.filler import FILLER_RULES
from relibra.routing.formats.batch import decode_padded
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import as_integers
from relibra.routing.token_layout import ParallelLayout, TokenPacking


def trainer_layout(
    ranks: ParallelLayout, make_sequence_length_divisible_by: int = 1, sequence_packing: bool = True
) -> TrainerLayout:
    """Return how NeMo-RL assigns tokens to ranks; the arguments are the `policy.` settings of the same names."""
    packing = (
        TokenPacking(sequence_multiple=make_sequence_length_divisible_by, rank_multiple=1)
        if sequence_packing
        else TokenPacking.padded(ranks, make_sequence_length_divisible_by)
    )
    return TrainerLayout(ranks=ranks, packing=packing, filler_rule=FILLER_RULES["nemo-rl"])


def rank_batch(batch: Any, layers: ModelLayers, train_micro_batch_size: int | None = None) -> RankBatch:
    """Return the batch that a rank trains on in one global batch.

    Args:
        batch: the global batch of this rank's shard.
        layers: the layers of the model.
        train_micro_batch_size: the `policy.` setting, needed without sequence packing and dynamic batching.

    Raises:
        InvalidInput: the routed experts do not fit their tokens, the batch holds several global batches, or
            `train_micro_batch_size` is needed and missing.
    """
    length_B = as_integers(batch["input_lengths"], "input_lengths")
    routed_BSXK = as_integers(batch["routed_experts"], "routed_experts")
    mask_BS = np.arange(routed_BSXK.shape[1]) < length_B[:, None]
    return RankBatch(
        routings=decode_padded(routed_BSXK, mask_BS, layers),
        micro_batches=[list(range(first, end)) for first, end in _spans(batch, len(length_B), train_micro_batch_size)],
    )


def _spans(batch: Any, num_sequences: int, micro_batch_size: int | None) -> list[tuple[int, int]]:
    if batch.micro_batch_indices is not None:
        if len(batch.micro_batch_indices) != 1:
            raise InvalidInput.of(
                "micro_batch_indices", expected="the indices of one global batch", got=len(batch.micro_batch_indices)
            )
        return [(int(first), int(end)) for first, end in batch.micro_batch_indices[0]]
    if not micro_batch_size or num_sequences % micro_batch_size:
        raise InvalidInput.of(
            "train_micro_batch_size", expected=f"a divisor of the {num_sequences} sequences", got=micro_batch_size
        )
    return list(pairwise(range(0, num_sequences + 1, micro_batch_size)))
