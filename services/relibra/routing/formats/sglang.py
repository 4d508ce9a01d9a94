"""SGLang: base64 of raw little-endian integers, flattened; the receiver must know layers and top-k.

The integers are int32. Versions after 0.5.23 may send a narrower dtype, named beside them in `routed_experts_dtype`.
The ids are `[rows, layers, K]` over all layers, with zeros for dense layers. The last token has no row, and
`routed_experts_start_len` leaves out leading rows. slime reads the same payload; AReaL reshapes it to
`[rows, layers x K]`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import as_integers

_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int32", "uint16", "uint8")}


def read_ids(payload: Any, layers: ModelLayers, num_tokens: int | None, field: str) -> Any:
    """Return the ids in the string of a response, or in the flat, 2-D or 3-D array that a framework made from it.

    A response with a dtype is a mapping with `data`, the string, and `dtype`, its name.

    Raises:
        InvalidInput: the payload does not have this format, or does not fit the model's layers and top-k.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    name = "int32"
    if isinstance(payload, Mapping):
        payload, name = payload.get("data"), payload.get("dtype")
        if not isinstance(name, str) or name not in _DTYPES:
            raise InvalidInput.of(f"{field}_dtype", expected=" or ".join(_DTYPES), got=name)
    if isinstance(payload, str | bytes):
        data, dtype = base64_to_bytes(payload, field), _DTYPES[name]
        if len(data) % dtype.itemsize:
            raise InvalidInput.of(field, expected=f"whole {name} numbers", got=f"{len(data)} bytes")
        payload = bytes_to_array(data, dtype, [len(data) // dtype.itemsize], field)
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
    return ids
