"""AReaL: the routing of a `ModelResponse`, which the trainer does not replay.

Read at areal-project/AReaL cbff54d (`areal/api/io_struct.py`, `areal/engine/sglang_remote.py`). Used of the response:
`routed_experts` `[rows, layers x K]`, `input_tokens` and `output_tokens`.
"""

from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import decode
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting


def response_routing(response: Any, layers: ModelLayers) -> SequenceRouting:
    """Return the routing of one response.

    Raises:
        InvalidInput: none, or rows that do not fit the tokens. After an interruption AReaL puts the rows of all its
            requests one after the other, and nobody can tell which is which.
    """
    if response.routed_experts is None:
        raise InvalidInput.of(
            "response.routed_experts", expected="routed experts (rollout.return_routed_experts=true, SGLang)", got=None
        )
    return decode(
        response.routed_experts,
        layers,
        format_name="areal",
        num_tokens=len(response.input_tokens) + len(response.output_tokens),
        field="response.routed_experts",
    )
