"""Where the HTTP responses of rollout engines hold routed experts, and how many tokens they have.

vLLM        choices[i].routed_experts in completions, chat completions and generate
SGLang      meta_info.routed_experts; OpenAI-compatible: sglext.routed_experts, for one choice only, or
            choices[i].meta_info.routed_experts in chat completions with return_meta_info. A whole response has those
            of the first choice in sglext, and a stream those of the first one that ended with some.
NeMo-RL     choices[i].message.routed_experts
others      routed_experts or rollout_routed_experts at the top level: samples of SkyRL, slime, AReaL
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.choices import Usage
from relibra.routing.event_stream import STREAMED

_AT_TOP = ("routed_experts", "rollout_routed_experts")
_NULL = "null, which engines send for an aborted request"
_ABSENT = "none, though another choice has some"
_FIRST_CHOICE_ONLY = (
    "none: SGLang's OpenAI API sends those of one choice only; ask /generate, or set return_meta_info in requests"
)
_OF_SOME_CHOICE = (
    "those of one of several choices, and a stream of SGLang's OpenAI API does not say of which; ask /generate, or do "
    "not stream"
)
_LOST_IN_STREAM = (
    "null, though the choice ended: vLLM 0.29 loses them where it merges events of a stream (0.33 does not); do not "
    "stream"
)
_STREAM_OPTIONS = (
    "routed experts (vLLM streams them in /inference/v1/generate only: do not stream, or use that path; SGLang: start "
    "the server with --enable-return-routed-experts, and set return_routed_experts in requests)"
)
_OPTIONS = (
    "routed experts (vLLM: start the server with --enable-return-routed-experts; SGLang: do the same, and set "
    "return_routed_experts in requests)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedCompletion:
    """The routed experts of one completion, still encoded."""

    payload: Any
    """None if the response has no routed experts for this completion."""
    format_name: str | None = None
    """The format, if the place in the response determines it; None if the payload itself must tell it."""
    num_tokens: int | None = None
    """Tokens of prompt and completion; None if the response does not tell them."""
    usage: Usage | None = None
    """The tokens of all choices of the response together, if it tells those of none."""
    field: str
    expected: str = "routed experts"
    instead: str = _NULL
    """What the response has if it has no payload."""


def completions_of(response: Any) -> list[RoutedCompletion]:
    """Find the routed experts of every completion of a response, also of those that should have them and do not.

    Raises:
        InvalidInput: the response is no JSON object and no list of them.
    """
    parts = response if isinstance(response, list) else [response]
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InvalidInput.of(
            "response", expected="a JSON object, or a list of JSON objects", got=f"a {type(response).__name__}"
        )
    return [completion for part in parts for completion in _of_one(part)]


def _of_one(response: Mapping[str, Any]) -> list[RoutedCompletion]:
    meta_info = _mapping(response.get("meta_info"))
    if "routed_experts" in meta_info:
        return [_from_sglang(meta_info, "meta_info", _total(meta_info))]
    completions = _of_choices(response) or _at_top(response)
    if not completions:
        keys = ", ".join(sorted(str(key) for key in response if key != STREAMED))[:200] or "none"
        reason = _finish_reason(meta_info)
        completions = [
            RoutedCompletion(
                payload=None,
                field="response",
                expected=_STREAM_OPTIONS if _is_stream_of_text(response) else _OPTIONS,
                instead=f"the keys {keys}" + (f", finished by {reason}" if reason else ""),
            )
        ]
    return completions


def _of_choices(response: Mapping[str, Any]) -> list[RoutedCompletion]:
    """Return a completion for every choice, or nothing if none has routed experts."""
    listed = response.get("choices")
    choices = [_mapping(choice) for choice in listed] if isinstance(listed, list) else []
    usage = _usage(response, choices)
    completions = [_of_choice(response, choices, index, usage) for index in range(len(choices))]
    absent = _ABSENT
    sglext = _mapping(response.get("sglext"))
    if not any(completions) and "routed_experts" in sglext:
        first = _from_sglang(sglext, "sglext", _num_tokens(response, choices, 0))
        if STREAMED in response and len(choices) > 1:
            first = RoutedCompletion(payload=None, field=first.field, instead=_OF_SOME_CHOICE)
        completions = [first, *completions[1:]]
        absent = _FIRST_CHOICE_ONLY
    if not any(completions):
        return []
    return [
        completion or RoutedCompletion(payload=None, field=f"choices[{index}].routed_experts", instead=absent)
        for index, completion in enumerate(completions)
    ]


def _of_choice(
    response: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], index: int, usage: Usage | None
) -> RoutedCompletion | None:
    choice, name = choices[index], f"choices[{index}]"
    num_tokens = _num_tokens(response, choices, index)
    meta_info = _mapping(choice.get("meta_info"))
    if "routed_experts" in meta_info:
        return _from_sglang(meta_info, f"{name}.meta_info", num_tokens or _total(meta_info))
    for place, field in ((choice, name), (_mapping(choice.get("message")), f"{name}.message")):
        if "routed_experts" in place:
            has_ended = STREAMED in response and choice.get("finish_reason") not in (None, "abort")
            return RoutedCompletion(
                payload=place["routed_experts"],
                num_tokens=num_tokens,
                usage=usage,
                field=f"{field}.routed_experts",
                instead=_LOST_IN_STREAM if has_ended else _NULL,
            )
    return None


def _is_stream_of_text(response: Mapping[str, Any]) -> bool:
    """Return whether a response was streamed by completions or chat completions."""
    listed = response.get("choices")
    choices = [_mapping(choice) for choice in listed] if isinstance(listed, list) else []
    return STREAMED in response and any("text" in choice or "delta" in choice for choice in choices)


def _from_sglang(place: Mapping[str, Any], name: str, num_tokens: int | None) -> RoutedCompletion:
    payload, dtype = place["routed_experts"], place.get("routed_experts_dtype")
    if payload is not None and dtype is not None:
        payload = {"data": payload, "dtype": dtype}
    return RoutedCompletion(
        payload=payload, format_name="sglang", num_tokens=num_tokens, field=f"{name}.routed_experts"
    )


def _at_top(response: Mapping[str, Any]) -> list[RoutedCompletion]:
    """Return the completion of a framework's sample."""
    tokens = response.get("tokens")
    return [
        RoutedCompletion(
            payload=response[key],
            format_name="slime" if key == "rollout_routed_experts" else None,
            num_tokens=len(tokens) if isinstance(tokens, list) else None,
            field=key,
        )
        for key in _AT_TOP
        if key in response
    ]


def _num_tokens(response: Mapping[str, Any], choices: Sequence[Mapping[str, Any]], index: int) -> int | None:
    """Count the tokens of a choice by its token ids, or by the usage if the response has no other choice."""
    choice = choices[index] if choices else response
    sglext = _mapping(response.get("sglext"))
    prompt = choice.get("prompt_token_ids") or response.get("prompt_token_ids") or sglext.get("input_ids")
    completion = choice.get("token_ids") or choice.get("response_token_ids")
    outputs = sglext.get("output_ids")
    if completion is None and isinstance(outputs, list) and index < len(outputs):
        completion = outputs[index]
    if isinstance(prompt, list) and isinstance(completion, list):
        return len(prompt) + len(completion)
    return _total(_mapping(response.get("usage"))) if len(choices) <= 1 else None


def _total(usage: Mapping[str, Any]) -> int | None:
    tokens = _prompt_and_completion(usage)
    return None if tokens is None else sum(tokens)


def _usage(response: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> Usage | None:
    """Return the tokens of all choices together, unless the response tells those of a choice, or neither."""
    tokens = _prompt_and_completion(_mapping(response.get("usage")))
    if tokens is None or any(_num_tokens(response, choices, index) is not None for index in range(len(choices))):
        return None
    return Usage(
        num_choices=len(choices),
        prompt_tokens=tokens[0],
        completion_tokens=tokens[1],
        has_one_prompt="request_id" in response or response.get("object") == "chat.completion",
    )


def _prompt_and_completion(usage: Mapping[str, Any]) -> tuple[int, int] | None:
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
        return prompt, completion
    return None


def _finish_reason(meta_info: Mapping[str, Any]) -> str:
    """Return why SGLang ended a request, such as `abort`."""
    reason = meta_info.get("finish_reason")
    return str(_mapping(reason).get("type", ""))[:40]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
