"""Outputs of vLLM in the process, decoded."""

from collections.abc import Sequence
from typing import Any, Protocol

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, check_no_layer_lost


class CompletionOutput(Protocol):
    """The attributes that relibra reads of vLLM's class of the same name."""

    token_ids: Sequence[int]
    routed_experts: Any


class RequestOutput(Protocol):
    """The attributes that relibra reads of vLLM's class of the same name."""

    prompt_token_ids: Sequence[int] | None
    outputs: Sequence[CompletionOutput]
    finished: bool


def decode_output(output: RequestOutput, layers: ModelLayers, *, start: int | None = None) -> list[SequenceRouting]:
    """Decode all completions of a finished `RequestOutput` of vLLM, in order.

    With the `output_kind` DELTA, vLLM gives the rows of all tokens with the last tokens only. Rows that are more than
    the tokens are taken for those; pass `start` if the request left out a prefix.

    Args:
        output: vLLM's output, or any object with its attributes.
        layers: the layers of the model.
        start: the `routed_experts_prompt_start` of the request; by default the number of tokens tells it.

    Raises:
        InvalidInput: the output is not finished, or has no routed experts or malformed ones, or fewer rows than its
            tokens need.
        LimitExceeded: a sequence is too large.
    """
    if not output.finished:
        raise InvalidInput.of(
            "output.finished", expected="true, as vLLM gives routed experts with the last output", got=output.finished
        )
    num_prompt_tokens = None if output.prompt_token_ids is None else len(output.prompt_token_ids)
    routings = []
    for index, completion in enumerate(output.outputs):
        field = f"outputs[{index}].routed_experts"
        if completion.routed_experts is None:
            raise InvalidInput.of(
                field,
                expected="routed experts (set enable_return_routed_experts=True, and use output_kind=FINAL_ONLY: "
                "with DELTA, vLLM 0.29 loses those of outputs that it merges)",
                got=None,
            )
        num_tokens = None
        if num_prompt_tokens is not None:
            num_tokens = num_prompt_tokens + len(completion.token_ids)
            first = num_tokens - 1 - len(completion.routed_experts)
            if first < (start or 0):
                num_tokens = None  # the output has the last tokens only
            elif first > num_prompt_tokens or start not in (None, first):
                place = "a token of the prompt" if start is None else f"token {start}"
                raise InvalidInput.of(
                    field,
                    expected=f"rows from {place} to the last but one of {num_tokens}",
                    got=f"{len(completion.routed_experts)} rows",
                )
        routing = decode(
            completion.routed_experts, layers, format_name="vllm", num_tokens=num_tokens, start=start, field=field
        )
        check_no_layer_lost(routing, field)
        routings.append(routing)
    return routings
