"""HTTP responses of rollout engines: where the routed experts are in them, and how many tokens they speak of.

vLLM        choices[i].routed_experts, of completions, chat completions and generate
SGLang      meta_info.routed_experts; OpenAI-compatible: sglext.routed_experts, for the first choice
NeMo-RL     choices[i].message.routed_experts
others      routed_experts or rollout_routed_experts at the top: SkyRL, prime-rl, slime, AReaL samples
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
    """What the place in the response says of the format; None where the payload must say it."""
    num_tokens: int | None
    """Prompt and completion; None where the response does not say."""
    field: str


def decode_response(
    response: Any, layers: ModelLayers, *, format_name: str | None = None, start: int | None = None
) -> list[SequenceRouting]:
    """Decode all completions of a response, in order.

    Args:
        response: the parsed JSON: an object, or a list of such as SGLang answers a batch with.
        layers: the model's.
        format_name: overrides what the response says of itself.
        start: first token with a row, where the request left out a prefix; found by the number of tokens by default.

    Raises:
        InvalidInput: no routed experts in it, or malformed ones; says which option makes the engine send them.
        LimitExceeded: larger than a sequence may be.
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
        InvalidInput: as `decode_response`.
    """
    parts = response if isinstance(response, list) else [response]
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InvalidInput.of(
            "response", expected="a JSON object, or a list of such", got=f"a {type(response).__name__}"
        )
    return [each for part in parts for each in _completions_of_one(part)]


def _completions_of_one(response: Mapping[str, Any]) -> list[RoutedCompletion]:
    found = list(_find(response))
    if not found:
        raise InvalidInput.of(
            "response",
            expected="routed experts (vLLM: start with --enable-return-routed-experts; SGLang: the same, and ask with "
            "return_routed_experts)",
            got=f"the keys {', '.join(sorted(map(str, response)))[:200] or 'none'}",
        )
    for each in found:
        if each.payload is None:
            raise InvalidInput.of(each.field, expected="routed experts", got="null, as for an aborted request")
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
    """Tokens of a choice: by its token ids, or by the usage of a response that has no other choice."""
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
