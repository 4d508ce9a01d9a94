"""vLLM: base64 of a whole `.npy` file over HTTP, a numpy array in the process.

The ids are `[rows, layers, K]` over all layers, with zeros for dense layers. Up to vLLM 0.19 they are int32; later they
are uint8, or uint16 above 256 experts. The last token has no row, and `routed_experts_prompt_start` leaves out leading
rows.
"""

from typing import Any

from relibra.routing.encoded_array import base64_to_bytes, npy_to_array
from relibra.routing.model_layers import ModelLayers

NPY_IN_BASE64 = "k05VTVBZ"
"""The first characters of a `.npy` file in base64."""


def read_ids(payload: Any, layers: ModelLayers, num_tokens: int | None, field: str) -> Any:
    """Return the ids in the string of an HTTP response, or in the array of a `CompletionOutput`.

    Raises:
        InvalidInput: the payload does not have this format.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    return npy_to_array(base64_to_bytes(payload, field), field) if isinstance(payload, str | bytes) else payload
