"""HTTP responses of rollout engines, decoded; `routed_completions` has the places of their routed experts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from relibra.errors import InvalidInput, RelibraError
from relibra.routing.choices import place_choices
from relibra.routing.event_stream import parse_body
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
        response: the body, as bytes, text or parsed JSON: an object, or a list of objects, with which SGLang answers a
            batch; a streamed body as it came.
        layers: the layers of the model.
        format_name: the format of the payloads; by default the response tells it.
        start: the first token with a row, if the request left out a prefix; by default the number of tokens tells it.

    Raises:
        InvalidInput: the response is not JSON, or a completion has no routed experts (the message names the engine's
            option for them), or malformed ones.
        LimitExceeded: a sequence is larger than the limit.
    """
    if isinstance(response, str | bytes | bytearray):
        try:
            response = parse_body(response)
        except (ValueError, RecursionError) as error:
            raise InvalidInput.of("response", expected="JSON", got=error) from error
    routings = []
    for decoded in decode_completions(completions_of(response), layers, format_name=format_name, start=start):
        if isinstance(decoded, RelibraError):
            raise decoded
        routings.append(decoded)
    return routings


def decode_completions(
    completions: Sequence[RoutedCompletion],
    layers: ModelLayers,
    *,
    format_name: str | None = None,
    start: int | None = None,
) -> list[SequenceRouting | RelibraError]:
    """Decode completions in order; see `decode_response`. In place of those that cannot be read are their errors."""
    decoded: list[SequenceRouting | RelibraError] = []
    for usage, of_usage in groupby(completions, key=lambda completion: completion.usage):
        choices = [_decode(completion, layers, format_name, start) for completion in of_usage]
        routings = [choice for choice in choices if isinstance(choice, SequenceRouting)]
        if usage is not None and start is None and len(routings) == usage.num_choices:
            try:
                choices = [*place_choices(routings, usage)]
            except RelibraError as error:
                choices = [error] * len(choices)
        decoded += choices
    return decoded


def _decode(
    completion: RoutedCompletion, layers: ModelLayers, format_name: str | None, start: int | None
) -> SequenceRouting | RelibraError:
    if completion.payload is None:
        return InvalidInput.of(completion.field, expected=completion.expected, got=completion.instead)
    try:
        routing = decode(
            completion.payload,
            layers,
            format_name=format_name or completion.format_name,
            num_tokens=completion.num_tokens,
            start=start,
            field=completion.field,
        )
        check_no_layer_lost(routing, completion.field)
    except RelibraError as error:
        return error
    # The narrow copy frees the payload, which may hold four bytes per id.
    return replace(routing, routed_TLK=routing.narrow())
