"""`EngineReporter`: reports the outputs of inference engines, in the process or over HTTP."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from relibra.errors import InvalidInput
from relibra.rollout.reporter import RolloutReporter
from relibra.routing.event_stream import parse_body
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.responses import decode_response
from relibra.routing.sequence_routing import SequenceRouting, check_no_layer_lost

logger = logging.getLogger(__name__)


class CompletionOutput(Protocol):
    """The attributes that relibra reads of vLLM's class of the same name."""

    token_ids: Sequence[int]
    routed_experts: Any


class RequestOutput(Protocol):
    """The attributes that relibra reads of vLLM's class of the same name."""

    request_id: str
    prompt_token_ids: Sequence[int] | None
    outputs: Sequence[CompletionOutput]
    finished: bool


class EngineReporter:
    """Reports the routing in unchanged engine outputs through a `RolloutReporter`: MoE layers, tokens with a route.

        engine_reporter = EngineReporter(reporter, read_model_config("config.json"))
        for output in llm.generate(prompts, sampling_params):
            engine_reporter.report_output(step, output)

    A sequence has the name of its request, followed by `/0`, `/1`, ... if the request has several completions.
    """

    def __init__(self, reporter: RolloutReporter, layers: ModelLayers) -> None:
        """Report through `reporter`.

        Args:
            reporter: the reporter to use; the caller flushes and closes it.
            layers: the layers of the model, see `read_model_config`.
        """
        self._reporter = reporter
        self._layers = layers
        self._has_said_unplaced = False

    def report_output(
        self,
        step: int,
        output: RequestOutput,
        *,
        start: int | None = None,
        policy_versions: tuple[int, int] | None = None,
    ) -> list[str]:
        """Report a finished `RequestOutput` of vLLM; return the names of its sequences that were taken.

        With the `output_kind` DELTA, vLLM gives the rows of all tokens with the last tokens only. Rows that are more
        than the tokens are taken for those; pass `start` if the request left out a prefix.

        Args:
            step: the RL step the sequences are trained in.
            output: vLLM's output, or any object with its attributes.
            start: the `routed_experts_prompt_start` of the request; by default the number of tokens tells it.
            policy_versions: the versions of the policy that generated the first and the last row.

        Raises:
            InvalidInput: the output is not finished, or has no routed experts or malformed ones, or fewer rows than
                its tokens need; nothing of the output is reported.
            LimitExceeded: a sequence is too large.
        """
        if not output.finished:
            raise InvalidInput.of(
                "output.finished",
                expected="true, as vLLM gives routed experts with the last output",
                got=output.finished,
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
            routings.append(
                decode(
                    completion.routed_experts,
                    self._layers,
                    format_name="vllm",
                    num_tokens=num_tokens,
                    start=start,
                    field=field,
                )
            )
            check_no_layer_lost(routings[-1], field)
        return self._report(step, output.request_id, routings, policy_versions)

    def report_response(
        self,
        step: int,
        sequence_id: str,
        response: Any,
        *,
        format_name: str | None = None,
        start: int | None = None,
        policy_versions: tuple[int, int] | None = None,
    ) -> list[str]:
        """Report an HTTP response of vLLM, SGLang or the like; return the names of its sequences that were taken.

        Args:
            step: the RL step the sequences are trained in.
            sequence_id: the name of the request within the step.
            response: the body, as bytes, text or parsed JSON; a streamed body as it came.
            format_name: the format; by default the response tells it.
            start: the index of the first token with a route, if the request left out a prefix.
            policy_versions: the versions of the policy that generated the first and the last row.

        Raises:
            InvalidInput: the response is not JSON, or has no routed experts or malformed ones; nothing is reported.
            LimitExceeded: a sequence is too large.
        """
        if isinstance(response, str | bytes | bytearray):
            try:
                response = parse_body(response)
            except (ValueError, RecursionError) as error:
                raise InvalidInput.of("response", expected="JSON", got=error) from error
        routings = decode_response(response, self._layers, format_name=format_name, start=start)
        return self._report(step, sequence_id, routings, policy_versions)

    def report_routing(
        self,
        step: int,
        sequence_id: str,
        routing: SequenceRouting,
        *,
        policy_versions: tuple[int, int] | None = None,
    ) -> bool:
        """Report a decoded sequence, for example one joined from turns; return whether the reporter took it."""
        return bool(self._report(step, sequence_id, [routing], policy_versions))

    def _report(
        self,
        step: int,
        request_id: str,
        routings: list[SequenceRouting],
        policy_versions: tuple[int, int] | None,
    ) -> list[str]:
        if not self._has_said_unplaced and not all(routing.is_placed for routing in routings):
            self._has_said_unplaced = True
            logger.warning(
                "%s does not tell its number of tokens: its first row is taken for the first token, which is wrong if "
                "the request left out a prefix; then pass start, or set return_token_ids in requests (include_usage in "
                "the stream_options of streamed ones)",
                request_id,
            )
        names = [request_id] if len(routings) == 1 else [f"{request_id}/{index}" for index in range(len(routings))]
        return [
            name
            for name, routing in zip(names, routings, strict=True)
            if self._reporter.report(step, name, routing.narrow(), policy_versions=policy_versions)
        ]
