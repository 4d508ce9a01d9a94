"""prime-rl: the `MicroBatch` list of a data-parallel rank, to show what balancing would give.

Written against PrimeIntellect-ai/prime-rl 559b447 (`src/prime_rl/trainer/batch.py`, `packages/prime-rl-configs`). The
adapter reads `sequence_lengths` and `routed_experts` of a micro-batch, the latter with `data`, `shape` and `dtype`.
prime-rl trains with FSDP2 and torchtitan's expert parallelism, in which no agent can run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.routing.encoded_array import bytes_to_array
from relibra.routing.filler import Filler, FillerRule
from relibra.routing.formats.batch import decode_jagged
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting
from relibra.routing.token_layout import ParallelLayout, TokenPacking

_DTYPES = {name: np.dtype(name) for name in ("uint8", "uint16", "int16", "int32")}
"""Versions of prime-rl differ in what they send beside uint8."""


def trainer_layout(ranks: ParallelLayout, pad_to_multiple_of: int = 1) -> TrainerLayout:
    """Return how prime-rl assigns tokens: each rank has packed sequences, padded with zeros, which it replays."""
    return TrainerLayout(
        ranks=ranks,
        packing=TokenPacking(sequence_multiple=1, rank_multiple=pad_to_multiple_of),
        filler_rule=FillerRule(last_token=Filler.EXPERT_ZERO, missing=Filler.EXPERT_ZERO, padding=Filler.EXPERT_ZERO),
    )


def rank_batch(micro_batches: Sequence[Any], layers: ModelLayers) -> RankBatch:
    """Return the batch that a rank trains on.

    Raises:
        InvalidInput: a micro-batch has no routed experts, or its routed experts do not fit its sequences.
    """
    routings: list[SequenceRouting] = []
    places: list[list[int]] = []
    for index, micro_batch in enumerate(micro_batches):
        payload, field = micro_batch.routed_experts, f"micro_batches[{index}].routed_experts"
        if payload is None or payload.dtype not in _DTYPES:
            raise InvalidInput.of(field, expected=" or ".join(_DTYPES), got=payload and payload.dtype)
        rows_TXK = bytes_to_array(payload.data, _DTYPES[payload.dtype], payload.shape, field)
        offsets = np.cumsum([0, *micro_batch.sequence_lengths])
        decoded = decode_jagged(rows_TXK[: offsets[-1]], offsets, layers)
        places.append(list(range(len(routings), len(routings) + len(decoded))))
        routings += decoded
    return RankBatch(routings=routings, micro_batches=places)
