"""verl: the data of `MegatronEngine.forward_backward_batch`, and the results of `prepare_micro_batches` for it.

Written against verl-project/verl 1dda039 (`verl/workers/engine/megatron/transformer_impl.py`,
`verl/workers/engine/utils.py`). The adapter reads `input_ids` and `routed_experts` of `data`, jagged tensors with one
sequence per sample.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing
from relibra.steps import RankBatch


def rank_batch(
    data: Mapping[str, Any],
    micro_batches: Sequence[Any],
    indices: Sequence[Sequence[int]] | None,
    layers: ModelLayers,
    mode: str = "R3",
) -> RankBatch:
    """Return the batch that a rank trains on; with R2, the batch whose recorded routing it replays.

    Args:
        data: the argument of `forward_backward_batch`.
        micro_batches: the first result of `prepare_micro_batches`; only its length is used.
        indices: the second result; None if micro-batches are runs of equal size.
        layers: the layers of the model.
        mode: `router_replay.mode`. R3 rows come from the rollout, which has none for the last token; R2 rows come from
            the trainer, which has one for every token.

    Raises:
        InvalidInput: the routed experts do not fit their tokens.
    """
    tokens_T = as_integers(data["input_ids"].values(), "input_ids")
    spans = list(pairwise(as_integers(data["input_ids"].offsets(), "input_ids.offsets").tolist()))
    lengths = [end - first for first, end in spans]
    rows_TXK = as_integers(data["routed_experts"].values(), "routed_experts")
    offsets = as_integers(data["routed_experts"].offsets(), "routed_experts.offsets").tolist()
    if len(offsets) != len(lengths) + 1:
        raise InvalidInput.of("routed_experts", expected=f"{len(lengths)} sequences", got=len(offsets) - 1)
    decode = _rows_of if mode == "R2" else _rolled_out
    routings = [
        decode(rows_TXK[first:end], layers, num_tokens, f"routed_experts[{index}]")
        for index, ((first, end), num_tokens) in enumerate(zip(pairwise(offsets), lengths, strict=True))
    ]
    places = np.split(np.arange(len(lengths)), len(micro_batches)) if indices is None else indices
    return RankBatch(
        routings=routings,
        micro_batches=[[int(place) for place in of_one] for of_one in places],
        # What the trainer recorded is of its own pass, and not what the rollout reported.
        names=() if mode == "R2" else [name_sequence(tokens_T[first:end]) for first, end in spans],
    )


def _rolled_out(rows_TXK: Any, layers: ModelLayers, num_tokens: int, field: str) -> SequenceRouting:
    return sequence_routing(rows_TXK, layers, num_tokens=num_tokens, field=field)


def _rows_of(rows_TXK: Any, layers: ModelLayers, num_tokens: int, field: str) -> SequenceRouting:
    if len(rows_TXK) != num_tokens:
        raise InvalidInput.of(field, expected=f"a row for each of {num_tokens} tokens", got=len(rows_TXK))
    return SequenceRouting(
        layers=layers,
        routed_TLK=layers.select_moe(rows_TXK, field),
        position_T=np.arange(num_tokens, dtype=np.int64),
        num_tokens=num_tokens,
    )
