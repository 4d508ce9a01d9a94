"""vLLM: base64 of a whole `.npy` file over HTTP, a numpy array in the process.

`[rows, layers, K]` over all layers, zeros for dense ones; int32 up to 0.19, then uint8, or uint16 above 256 experts.
Rows end at the last token but one; `routed_experts_prompt_start` leaves out leading ones.
"""

from typing import Any

from relibra.routing.encoded_array import base64_to_bytes, npy_to_array
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing

NPY_IN_BASE64 = "k05VTVBZ"
"""How base64 of a `.npy` file begins."""


def decode(
    payload: Any,
    layers: ModelLayers,
    *,
    num_tokens: int | None = None,
    start: int | None = None,
    field: str = "routed_experts",
) -> SequenceRouting:
    """Decode a string of an HTTP response, or the array of a `CompletionOutput`.

    Raises:
        InvalidInput: not such a payload.
        LimitExceeded: larger than a sequence may be.
    """
    if isinstance(payload, str | bytes):
        payload = npy_to_array(base64_to_bytes(payload, field), field)
    return sequence_routing(payload, layers, num_tokens=num_tokens, start=start, field=field)
