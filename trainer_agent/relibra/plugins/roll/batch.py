"""ROLL: the micro-batches of a pass, as its Megatron strategies hand them to megatron's schedule.

Written against ROLL 8eb27cc (`roll/utils/functionals.py`). The adapter reads from the `batch` of each micro-batch
`input_ids` and `attention_mask` `[B, S]`, padded on the right, and `routed_experts` `[B, S, layers, K]`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing
from relibra.steps import RankBatch

ROUTES = "routed_experts"
_KEYS = ("input_ids", "attention_mask", ROUTES)


def rank_batch(micro_batches: Sequence[Mapping[str, Any]], layers: ModelLayers) -> RankBatch:
    """Return the batch of a rank.

    Args:
        micro_batches: the tensors of each micro-batch.
        layers: the layers of the model.

    Raises:
        InvalidInput: routed experts do not fit their tokens or the model.
    """
    routings, names, places = list[SequenceRouting](), list[str](), list[list[int]]()
    for micro_batch in micro_batches:
        first = len(routings)
        for ids_S, attention_S, routed_SXK in zip(*(as_integers(micro_batch[key], key) for key in _KEYS), strict=True):
            num_tokens = int(attention_S.sum())
            names.append(name_sequence(ids_S[:num_tokens]))
            routings.append(sequence_routing(routed_SXK[:num_tokens], layers, num_tokens=num_tokens))
        places.append(list(range(first, len(routings))))
    return RankBatch(routings=routings, micro_batches=places, names=names)
