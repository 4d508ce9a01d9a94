"""NeMo-RL: one global batch of a shard, as a policy worker hands it to `get_microbatch_iterator`.

Written against NVIDIA-NeMo/RL 7ea279a (`nemo_rl/distributed/batched_data_dict.py`, `nemo_rl/models/megatron/data.py`).
The adapter reads `routed_experts` `[B, S, layers, K]`, `input_ids` `[B, S]` and `input_lengths` `[B]` of the batch, and
the attribute `micro_batch_indices`, which holds one list for its one global batch.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, as_integers
from relibra.steps import RankBatch


def rank_batch(batch: Any, layers: ModelLayers, train_micro_batch_size: int | None = None) -> RankBatch:
    """Return the batch that a rank trains on in one global batch.

    Args:
        batch: the global batch of this rank's shard.
        layers: the layers of the model.
        train_micro_batch_size: the size of micro-batches, needed without sequence packing and dynamic batching.

    Raises:
        InvalidInput: the routed experts do not fit their tokens, the batch holds several global batches, or
            `train_micro_batch_size` is needed and missing.
    """
    length_B = as_integers(batch["input_lengths"], "input_lengths").tolist()
    routed_BSXK = as_integers(batch["routed_experts"], "routed_experts")
    if routed_BSXK.ndim != 4 or len(routed_BSXK) != len(length_B):
        raise InvalidInput.of(
            "routed_experts", expected=f"[{len(length_B)}, S, layers, K]", got=list(routed_BSXK.shape)
        )
    spans = _spans(batch, len(length_B), train_micro_batch_size)
    return RankBatch(
        routings=[
            rows_to_replay(
                routed_BSXK[index, :num_tokens], layers, num_tokens=num_tokens, field=f"routed_experts[{index}]"
            )
            for index, num_tokens in enumerate(length_B)
        ],
        micro_batches=[list(range(first, end)) for first, end in spans],
        names=[
            name_sequence(ids_S[:num_tokens])
            for ids_S, num_tokens in zip(as_integers(batch["input_ids"], "input_ids"), length_B, strict=True)
        ],
    )


def rows_to_replay(
    routed_experts: Any, layers: ModelLayers, *, num_tokens: int, field: str = "routed_experts"
) -> SequenceRouting:
    """Return the rows of a sequence as NeMo-RL replays them, without those that it leaves to the router.

    Rows of dense layers are not looked at: tokens of an environment have experts 0 to K - 1 in all layers.

    Args:
        routed_experts: integers `[T, layers, K]`, a row for each token.
        layers: the layers of the model.
        num_tokens: the number of tokens, prompt and response.
        field: the name of the rows in errors.

    Raises:
        InvalidInput: the rows do not fit the tokens or the layers, or a row has only part of its routes.
    """
    rows_TXK = as_integers(routed_experts, field)
    if rows_TXK.ndim != 3:
        raise InvalidInput.of(field, expected="[rows, layers, K]", got=list(rows_TXK.shape))
    if num_tokens < 1 or len(rows_TXK) < num_tokens:
        raise InvalidInput.of(
            field, expected=f"at least one token, and a row for each of {num_tokens}", got=len(rows_TXK)
        )
    num_found, top_k = rows_TXK.shape[1:]
    if num_found not in (layers.num_layers, layers.num_moe_layers) or top_k != layers.top_k:
        raise InvalidInput.of(
            field,
            expected=f"[rows, {layers.num_layers} layers or {layers.num_moe_layers} MoE layers, top {layers.top_k}]",
            got=list(rows_TXK.shape),
        )
    ids_TLK = rows_TXK if num_found == layers.num_moe_layers else rows_TXK[:, np.flatnonzero(layers.is_moe)]
    is_lost_TLK = ids_TLK == -1
    is_lost_T = is_lost_TLK.all(axis=(1, 2))
    if (is_lost_TLK.any(axis=(1, 2)) & ~is_lost_T).any():
        raise InvalidInput.of(field, expected="expert ids, or -1 throughout for no route", got="a mixture in a row")
    return SequenceRouting(
        layers=layers,
        routed_TLK=ids_TLK if not is_lost_T.any() else ids_TLK[~is_lost_T],
        position_T=np.flatnonzero(~is_lost_T).astype(np.int64),
        num_tokens=num_tokens,
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
