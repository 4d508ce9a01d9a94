"""SkyRL: the batch of a Megatron worker and the micro-batches into which the worker cuts it.

Written against SkyRL 0.4.0 (`skyrl/backends/skyrl_train/utils/packed_tensor.py`, `.../workers/worker_utils.py` and
`.../workers/megatron/`). The adapter reads `rollout_expert_indices`, and `sequences` and `attention_mask` `[B, S]`.
The former is a `PackedTensor` with `values` `[T, layers, K]` and `cu_seqlens` `[B + 1]`.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.formats.batch import decode_jagged
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, as_integers
from relibra.steps import RankBatch


def rank_batch(micro_batches: Sequence[Mapping[str, Any]], layers: ModelLayers) -> RankBatch:
    """Return the batch of micro-batches as a worker hands them to its `MegatronModelWrapper`, with their dummies.

    Args:
        micro_batches: the argument of `forward` or `forward_backward_mini_batch`.
        layers: the layers of the model.

    Raises:
        InvalidInput: the routed experts do not fit their tokens.
    """
    routings = [_routings(batch, layers) for batch in micro_batches]
    ends = accumulate(map(len, routings), initial=0)
    return RankBatch(
        routings=list(chain.from_iterable(routings)),
        micro_batches=[list(range(first, end)) for first, end in pairwise(ends)],
        names=[name for batch in micro_batches for name in _names(batch)],
    )


def _names(batch: Mapping[str, Any]) -> list[str]:
    """Return the names of sequences, which are padded on the left or on both sides."""
    mask_BS = as_integers(batch["attention_mask"], "attention_mask").astype(bool)
    tokens_BS = as_integers(batch["sequences"], "sequences")
    return [name_sequence(tokens_S[mask_S]) for tokens_S, mask_S in zip(tokens_BS, mask_BS, strict=True)]


def _routings(batch: Mapping[str, Any], layers: ModelLayers) -> list[SequenceRouting]:
    routed, mask = batch["rollout_expert_indices"], batch["attention_mask"]
    length_B = as_integers(mask.sum(axis=1), "attention_mask").tolist()
    packed_B = np.diff(as_integers(routed.cu_seqlens, "rollout_expert_indices.cu_seqlens")).tolist()
    if packed_B != length_B:
        raise InvalidInput.of(
            "rollout_expert_indices.cu_seqlens",
            expected=f"segments of {length_B} rows, as many as each sequence has tokens in attention_mask",
            got=packed_B,
        )
    return decode_jagged(routed.values, routed.cu_seqlens, layers)
