"""AReaL: the routing of a `ModelResponse`, which the trainer does not replay.

Written against areal-project/AReaL cbff54d (`areal/api/io_struct.py`, `areal/engine/sglang_remote.py`). The adapter
reads `routed_experts` `[rows, layers x K]`, `input_tokens` and `output_tokens` of the response.
"""

from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting


def response_routing(response: Any, layers: ModelLayers) -> SequenceRouting:
    """Return the routing of one response.

    Raises:
        InvalidInput: the response has no routing, or rows that do not fit its tokens. After an interruption AReaL
            concatenates the rows of all its requests, so that rows can no longer be assigned to tokens.
    """
    if response.routed_experts is None:
        raise InvalidInput.of(
            "response.routed_experts",
            expected="routed experts (set rollout.return_routed_experts=true, with SGLang)",
            got=None,
        )
    return decode(
        response.routed_experts,
        layers,
        format_name="areal",
        num_tokens=len(response.input_tokens) + len(response.output_tokens),
        field="response.routed_experts",
    )
