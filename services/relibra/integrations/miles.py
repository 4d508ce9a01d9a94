"""miles: the data of a rollout on a data-parallel rank, and the iterator that forms its micro-batches.

Written against radixark/miles 31f1ca9 (`miles/backends/training_utils/data.py`, `.../replay_data.py`), a fork of slime.
The adapter reads `tokens` and `rollout_routed_experts` of `rollout_data`, and `micro_batch_indices` or
`micro_batch_size` of a `DataIterator`.

`--custom-megatron-init-path relibra.integrations.miles.init` turns on the plug-in `relibra.plugins.slime`.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from relibra.integrations import slime
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.routing.filler import FILLER_RULES
from relibra.routing.model_layers import ModelLayers
from relibra.routing.token_layout import ParallelLayout


def init(args: Any) -> None:
    """Balance the training of this process. miles calls this on every rank, before it builds the model.

    Args:
        args: the arguments of miles.

    Raises:
        InvalidInput, Unsupported: see `relibra.plugins.slime`.
    """
    import_module("relibra.plugins.slime").install(args, "miles")


def trainer_layout(
    ranks: ParallelLayout, data_pad_size_multiplier: int = 128, *, allgather_cp: bool = False
) -> TrainerLayout:
    """Return how miles assigns tokens to ranks with `--qkv-format thd`; the arguments are its own."""
    return slime.trainer_layout(
        ranks, data_pad_size_multiplier, allgather_cp=allgather_cp, filler_rule=FILLER_RULES["miles"]
    )


def rank_batch(
    rollout_data: Mapping[str, Any],
    iterator: Any,
    num_microbatches: Sequence[int],
    layers: ModelLayers,
    training_step: int = 0,
) -> RankBatch:
    """Return the batch that a rank trains on in one of a rollout's training steps.

    Args:
        rollout_data: the data of this rank.
        iterator: its `DataIterator`.
        num_microbatches: the micro-batches of each training step.
        layers: the layers of the model.
        training_step: the index of the training step in the rollout.

    Raises:
        InvalidInput: the training step does not exist, or routed experts do not fit their tokens.
    """
    indices = iterator.micro_batch_indices
    if indices is None:
        size = iterator.micro_batch_size
        indices = [range(first * size, (first + 1) * size) for first in range(sum(num_microbatches))]
    dealt = {"micro_batch_indices": indices, "num_microbatches": num_microbatches}
    return slime.rank_batch({**rollout_data, **dealt}, layers, training_step)
