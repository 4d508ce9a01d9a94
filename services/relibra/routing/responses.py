"""HTTP responses of rollout engines, decoded; `routed_completions` has the places of their routed experts."""

from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.routed_completions import RoutedCompletion, completions_of
from relibra.routing.sequence_routing import SequenceRouting, check_no_layer_lost


def decode_response(
    response: Any,
    layers: ModelLayers,
    *,
    format_name: str | None = None,
    start: int | None = None,
) -> list[SequenceRouting]:
    """Decode all completions of a response, in order.

    Args:
        response: the parsed JSON: an object, or a list of objects, with which SGLang answers a batch.
        layers: the layers of the model.
        format_name: the format of the payloads; by default the response tells it.
        start: the first token with a row, if the request left out a prefix; by default the number of tokens tells it.

    Raises:
        InvalidInput: a completion has no routed experts (the message names the engine's option for them), or malformed
            ones.
        LimitExceeded: a sequence is larger than the limit.
    """
    return [
        decode_completion(completion, layers, format_name=format_name, start=start)
        for completion in completions_of(response)
    ]


def decode_completion(
    completion: RoutedCompletion,
    layers: ModelLayers,
    *,
    format_name: str | None = None,
    start: int | None = None,
) -> SequenceRouting:
    """Decode one completion of a response; see `decode_response`.

    Raises:
        InvalidInput: the completion has no routed experts, or malformed ones.
        LimitExceeded: the sequence is larger than the limit.
    """
    if completion.payload is None:
        raise InvalidInput.of(completion.field, expected=completion.expected, got=completion.instead)
    routing = decode(
        completion.payload,
        layers,
        format_name=format_name or completion.format_name,
        num_tokens=completion.num_tokens,
        start=start,
        field=completion.field,
    )
    check_no_layer_lost(routing, completion.field)
    return routing
