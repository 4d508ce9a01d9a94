"""SkyRL: `{data, shape, dtype}` with base64; `dtype` is the narrowest of uint8, int16 and int32 that holds the ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array
from relibra.routing.model_layers import ModelLayers

_DTYPES = {name: np.dtype(name) for name in ("uint8", "int16", "int32")}
_KEYS = ("data", "shape", "dtype")


def is_envelope(payload: object) -> bool:
    """Return whether this is a mapping with `data`, `shape` and `dtype`."""
    return isinstance(payload, Mapping) and all(key in payload for key in _KEYS)


def read_ids(payload: Any, layers: ModelLayers, num_tokens: int | None, field: str) -> Any:
    """Return the ids in a mapping.

    Raises:
        InvalidInput: the payload does not have this format.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    if not is_envelope(payload):
        raise InvalidInput.of(field, expected=f"an object with {', '.join(_KEYS)}", got=f"{payload!r:.100}")
    data, shape, dtype_name = (payload[key] for key in _KEYS)
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise InvalidInput.of(f"{field}.dtype", expected=" or ".join(_DTYPES), got=f"{dtype_name!r:.40}")
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise InvalidInput.of(f"{field}.shape", expected="a list of three numbers", got=f"{shape!r:.40}")
    if not isinstance(data, str):
        raise InvalidInput.of(f"{field}.data", expected="base64", got=type(data).__name__)
    return bytes_to_array(base64_to_bytes(data, field), _DTYPES[dtype_name], shape, field)
