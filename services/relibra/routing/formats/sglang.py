"""SGLang: base64 of raw little-endian int32, flattened; the receiver must know layers and top-k.

The ids are `[rows, layers, K]` over all layers, with zeros for dense layers. The last token has no row, and
`routed_experts_start_len` leaves out leading rows. slime reads the same payload; AReaL reshapes it to
`[rows, layers x K]`.
"""

from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing

_INT32 = np.dtype("<i4")


def decode(
    payload: Any,
    layers: ModelLayers,
    *,
    num_tokens: int | None = None,
    start: int | None = None,
    field: str = "routed_experts",
) -> SequenceRouting:
    """Decode the string of a response, or the flat, 2-D or 3-D array that a framework made from it.

    Raises:
        InvalidInput: the payload does not have this format, or does not fit the model's layers and top-k.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    if isinstance(payload, str | bytes):
        data = base64_to_bytes(payload, field)
        if len(data) % _INT32.itemsize:
            raise InvalidInput.of(field, expected="whole int32 numbers", got=f"{len(data)} bytes")
        payload = bytes_to_array(data, _INT32, [len(data) // _INT32.itemsize], field)
    ids = as_integers(payload, field)
    if ids.ndim in (1, 2):
        ids_per_row = layers.num_layers * layers.top_k
        if ids.size % ids_per_row or (ids.ndim == 2 and ids.shape[1] != ids_per_row):
            raise InvalidInput.of(
                field,
                expected=f"rows of {ids_per_row} ids ({layers.num_layers} layers x top {layers.top_k})",
                got=f"{list(ids.shape)} ids",
            )
        ids = ids.reshape(-1, layers.num_layers, layers.top_k)
    return sequence_routing(ids, layers, num_tokens=num_tokens, start=start, field=field)
