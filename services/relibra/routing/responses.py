"""HTTP responses of rollout engines: where they hold routed experts, and how many tokens they have.

vLLM        choices[i].routed_experts in completions, chat completions and generate
SGLang      meta_info.routed_experts; OpenAI-compatible: sglext.routed_experts, for the first choice
NeMo-RL     choices[i].message.routed_experts
others      routed_experts or rollout_routed_experts at the top level: samples of SkyRL, prime-rl, slime, AReaL
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting

_AT_TOP = ("routed_experts", "rollout_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedCompletion:
    """The routed experts of one completion, still encoded."""

    payload: Any
    format_name: str | None
    """The format, if the place in the response determines it; None if the payload itself must tell it."""
    num_tokens: int | None
    """Tokens of prompt and completion; None if the response does not tell them."""
    field: str


def decode_response(
    response: Any, layers: ModelLayers, *, format_name: str | None = None, start: int | None = None
) -> list[SequenceRouting]:
    """Decode all completions of a response, in order.

    Args:
        response: the parsed JSON: an object, or a list of objects, with which SGLang answers a batch.
        layers: the layers of the model.
        format_name: the format of the payloads; by default the response tells it.
        start: the first token with a row, if the request left out a prefix; by default the number of tokens tells it.

    Raises:
        InvalidInput: the response has no routed experts (the message names the engine's option for them), or malformed
            ones.
        LimitExceeded: a sequence is larger than the limit.
    """
    return [
        decode(
            each.payload,
            layers,
            format_name=format_name or each.format_name,
            num_tokens=each.num_tokens,
            start=start,
            field=each.field,
        )
        for each in completions_of(response)
    ]


def completions_of(response: Any) -> list[RoutedCompletion]:
    """Find the routed experts of every completion of a response.

    Raises:
        InvalidInput: see `decode_response`.
    """
    parts = response if isinstance(response, list) else [response]
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InvalidInput.of(
            "response", expected="a JSON object, or a list of JSON objects", got=f"a {type(response).__name__}"
        )
    return [each for part in parts for each in _completions_of_one(part)]


def _completions_of_one(response: Mapping[str, Any]) -> list[RoutedCompletion]:
    found = list(_find(response))
    if not found:
        raise InvalidInput.of(
            "response",
            expected="routed experts (vLLM: start the server with --enable-return-routed-experts; SGLang: do the same, "
            "and set return_routed_experts in requests)",
            got=f"the keys {', '.join(sorted(map(str, response)))[:200] or 'none'}",
        )
    for each in found:
        if each.payload is None:
            raise InvalidInput.of(
                each.field, expected="routed experts", got="null, which engines send for an aborted request"
            )
    return found


def _find(response: Mapping[str, Any]) -> Iterator[RoutedCompletion]:
    meta_info = _mapping(response.get("meta_info"))
    if "routed_experts" in meta_info:
        yield RoutedCompletion(
            payload=meta_info["routed_experts"],
            format_name="sglang",
            num_tokens=_total(meta_info),
            field="meta_info.routed_experts",
        )
        return
    choices = response.get("choices")
    choices = [_mapping(each) for each in choices] if isinstance(choices, list) else []
    sglext = _mapping(response.get("sglext"))
    if "routed_experts" in sglext:
        yield RoutedCompletion(
            payload=sglext["routed_experts"],
            format_name="sglang",
            num_tokens=_num_tokens(response, choices, 0),
            field="sglext.routed_experts",
        )
        return
    for index, choice in enumerate(choices):
        for place, name in ((choice, f"choices[{index}]"), (_mapping(choice.get("message")), "message")):
            if "routed_experts" in place:
                yield RoutedCompletion(
                    payload=place["routed_experts"],
                    format_name=None,
                    num_tokens=_num_tokens(response, choices, index),
                    field=f"{name}.routed_experts",
                )
                break
    for key in _AT_TOP:
        if key in response:
            tokens = response.get("tokens")
            yield RoutedCompletion(
                payload=response[key],
                format_name="slime" if key == "rollout_routed_experts" else None,
                num_tokens=len(tokens) if isinstance(tokens, list) else None,
                field=key,
            )


def _num_tokens(response: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], index: int) -> int | None:
    """Count the tokens of a choice by its token ids, or by the usage if the response has no other choice."""
    choice = choices[index] if choices else response
    prompt = choice.get("prompt_token_ids") or response.get("prompt_token_ids")
    completion = choice.get("token_ids")
    if isinstance(prompt, list) and isinstance(completion, list):
        return len(prompt) + len(completion)
    return _total(_mapping(response.get("usage"))) if len(choices) <= 1 else None


def _total(usage: Mapping[str, Any]) -> int | None:
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
        return prompt + completion
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
