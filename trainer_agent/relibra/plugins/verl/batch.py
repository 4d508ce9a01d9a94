"""verl: the data of `MegatronEngine.forward_backward_batch`, and the results of `prepare_micro_batches` for it.

Written against verl-project/verl 1dda039 (`verl/workers/engine/megatron/transformer_impl.py`,
`verl/workers/engine/utils.py`). The adapter reads `input_ids` and `routed_experts` of `data`, jagged tensors with one
sequence per sample, and `response_mask` if it is there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.filler import FILLER_RULES, Filler, as_trained
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing
from relibra.routing.token_layout import ParallelLayout, TokenPacking
from relibra.steps.rank_batch import RankBatch, TrainerLayout

_RULES = {
    # A sample without response tokens replays nothing: all its tokens are left to the router.
    "R3": replace(FILLER_RULES["verl"], missing=Filler.NATIVE),
    "R2": FILLER_RULES["verl-r2"],
}
# Tokens after the last generation of a sample have rows of zeros, and verl replays them.
_OF_A_REPLAYED_SAMPLE = replace(FILLER_RULES["verl"], missing=Filler.EXPERT_ZERO)


def trainer_layout(ranks: ParallelLayout, mode: str = "R3") -> TrainerLayout:
    """Return how verl assigns tokens to ranks with `use_remove_padding`; `mode` is its `router_replay.mode`.

    Raises:
        InvalidInput: the mode is not R3 or R2, so verl replays nothing.
    """
    return TrainerLayout(ranks=ranks, packing=TokenPacking.verl(ranks), filler_rule=_RULES[_check(mode)])


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
        InvalidInput: the routed experts do not fit their tokens, or the mode is not R3 or R2.
    """
    is_recorded = _check(mode) == "R2"
    lengths = np.diff(as_integers(data["input_ids"].offsets(), "input_ids.offsets")).tolist()
    rows_TXK = as_integers(data["routed_experts"].values(), "routed_experts")
    offsets = as_integers(data["routed_experts"].offsets(), "routed_experts.offsets").tolist()
    if len(offsets) != len(lengths) + 1:
        raise InvalidInput.of("routed_experts", expected=f"{len(lengths)} sequences", got=len(offsets) - 1)
    decode = _recorded if is_recorded else _rolled_out
    is_replayed = [True] * len(lengths) if is_recorded else _have_response(data, len(lengths))
    routings = [
        decode(rows_TXK[first:end], layers, num_tokens, f"routed_experts[{index}]")
        if is_replayed[index]
        else _native(layers, num_tokens)
        for index, ((first, end), num_tokens) in enumerate(zip(pairwise(offsets), lengths, strict=True))
    ]
    places = np.split(np.arange(len(lengths)), len(micro_batches)) if indices is None else indices
    return RankBatch(routings=routings, micro_batches=[[int(place) for place in of_one] for of_one in places])


def _check(mode: str) -> str:
    if mode not in _RULES:
        raise InvalidInput.of("router_replay.mode", expected=" or ".join(_RULES), got=mode)
    return mode


def _rolled_out(rows_TXK: Any, layers: ModelLayers, num_tokens: int, field: str) -> SequenceRouting:
    routing = sequence_routing(rows_TXK, layers, num_tokens=num_tokens, field=field)
    return as_trained(routing, _OF_A_REPLAYED_SAMPLE) if routing.num_missing > 1 else routing


def _native(layers: ModelLayers, num_tokens: int) -> SequenceRouting:
    return SequenceRouting(
        layers=layers,
        routed_TLK=np.zeros((0, layers.num_moe_layers, layers.top_k), dtype=layers.id_dtype),
        position_T=np.zeros(0, dtype=np.int64),
        num_tokens=num_tokens,
    )


def _have_response(data: Mapping[str, Any], num_samples: int) -> list[bool]:
    """Return which samples verl's `build_r3_replay_mask` replays: those whose `response_mask` is not all zero."""
    mask = data["response_mask"] if "response_mask" in data.keys() else None  # noqa: SIM118 (a TensorDict refuses `in`)
    if mask is None:
        return [True] * num_samples
    sums = (
        [int(sample.sum()) for sample in mask.unbind()] if hasattr(mask, "unbind") else np.sum(mask, axis=-1).tolist()
    )
    if len(sums) != num_samples:
        raise InvalidInput.of("response_mask", expected=f"{num_samples} samples", got=len(sums))
    return [number > 0 for number in sums]


def _recorded(rows_TXK: Any, layers: ModelLayers, num_tokens: int, field: str) -> SequenceRouting:
    if len(rows_TXK) != num_tokens:
        raise InvalidInput.of(field, expected=f"a row for each of {num_tokens} tokens", got=len(rows_TXK))
    return SequenceRouting(
        layers=layers,
        routed_TLK=layers.select_moe(rows_TXK, field),
        position_T=np.arange(num_tokens, dtype=np.int64),
        num_tokens=num_tokens,
    )
