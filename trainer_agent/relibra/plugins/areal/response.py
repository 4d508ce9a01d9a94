"""AReaL: the routing of a response.

Written against AReaL 1.0.4 (`areal/api/io_struct.py`, `areal/infra/remote_inf_engine.py`). The adapter reads
`routed_experts` `[rows, layers x K]`, `input_tokens` and `output_tokens` of the response.
"""

from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting


def response_routing(response: Any, layers: ModelLayers) -> SequenceRouting:
    """Return the routing of one response.

    AReaL concatenates the rows of all requests of an interrupted rollout. Each request sent the whole sequence so far
    and returned the rows of all its tokens but the last, so the rows of the last request are those of the whole
    sequence. The rows of earlier requests are of the same tokens under older weights, and are left out.

    Raises:
        InvalidInput: the response has no routing, or rows that do not fit its tokens.
    """
    if response.routed_experts is None:
        raise InvalidInput.of(
            "response.routed_experts",
            expected="routed experts (set rollout.return_routed_experts=true, with SGLang)",
            got=None,
        )
    num_prompt, num_tokens = len(response.input_tokens), len(response.input_tokens) + len(response.output_tokens)
    num_earlier = len(response.routed_experts) - (num_tokens - 1)
    # Every earlier request has rows of the whole prompt, too.
    if num_earlier < 0 or 0 < num_earlier < num_prompt - 1:
        raise InvalidInput.of(
            "response.routed_experts",
            expected=f"{num_tokens - 1} rows for {num_tokens} tokens, after at least {num_prompt - 1} rows of each "
            "interrupted request",
            got=f"{len(response.routed_experts)} rows",
        )
    return decode(
        response.routed_experts[num_earlier:],
        layers,
        format_name="areal",
        num_tokens=num_tokens,
        field="response.routed_experts",
    )
