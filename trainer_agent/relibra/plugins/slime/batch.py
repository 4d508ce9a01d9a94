"""slime and miles: the data of a rollout on a data-parallel rank, and the micro-batches that are formed of it.

Written against THUDM/slime 624b824 (`slime/ray/rollout.py`, `slime/backends/megatron_utils/cp_utils.py`) and its fork
radixark/miles 31f1ca9 (`miles/backends/training_utils/data.py`, `.../replay_data.py`). The adapter reads from
`rollout_data`: `tokens` and `rollout_routed_experts` with one entry per sample. `micro_batch_indices` has a list of
samples per micro-batch, and `num_microbatches` a number per training step. slime has both in `rollout_data`; miles has
`micro_batch_indices` or `micro_batch_size` in a `DataIterator`.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import sequence_routing
from relibra.steps import RankBatch


def rank_batch(rollout_data: Mapping[str, Any], layers: ModelLayers, training_step: int = 0) -> RankBatch:
    """Return the batch that a rank trains on in one of a rollout's training steps.

    Args:
        rollout_data: the data of this rank.
        layers: the layers of the model.
        training_step: the index of the training step in the rollout.

    Raises:
        InvalidInput: the training step does not exist, or routed experts do not fit their tokens.
    """
    num_micro_batches = rollout_data["num_microbatches"]
    if not 0 <= training_step < len(num_micro_batches):
        raise InvalidInput.of("training_step", expected=f"0 to {len(num_micro_batches) - 1}", got=training_step)
    first = sum(num_micro_batches[:training_step])
    of_step = rollout_data["micro_batch_indices"][first : first + num_micro_batches[training_step]]
    samples = list(chain.from_iterable(of_step))
    place = {sample: index for index, sample in enumerate(samples)}
    return RankBatch(
        routings=[
            sequence_routing(
                rollout_data["rollout_routed_experts"][sample],
                layers,
                num_tokens=len(rollout_data["tokens"][sample]),
                field=f"rollout_routed_experts[{sample}]",
            )
            for sample in samples
        ],
        micro_batches=[[place[sample] for sample in of_micro_batch] for of_micro_batch in of_step],
        names=[name_sequence(rollout_data["tokens"][sample], f"tokens[{sample}]") for sample in samples],
    )


def with_micro_batches(
    rollout_data: Mapping[str, Any], iterator: Any, num_microbatches: Sequence[int]
) -> Mapping[str, Any]:
    """Return the data of a rollout in miles as slime has it.

    Args:
        rollout_data: the data of this rank.
        iterator: its `DataIterator`.
        num_microbatches: the micro-batches of each training step.
    """
    indices = iterator.micro_batch_indices
    if indices is None:
        size = iterator.micro_batch_size
        indices = [range(first * size, (first + 1) * size) for first in range(sum(num_microbatches))]
    return {**rollout_data, "micro_batch_indices": indices, "num_microbatches": num_microbatches}
