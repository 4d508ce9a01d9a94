"""SkyRL and prime-rl: `{data, shape, dtype}` with base64 or, in the process, raw bytes; prime-rl may add `start`.

`dtype` is the narrowest type that holds the ids: uint8, then uint16 (prime-rl) or int16 and int32 (SkyRL). prime-rl
pads the tail with rows of zeros.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing

_DTYPES = {name: np.dtype(name) for name in ("uint8", "uint16", "int8", "int16", "int32")}
_KEYS = ("data", "shape", "dtype")


def is_envelope(payload: object) -> bool:
    """Return whether this is a mapping with `data`, `shape` and `dtype`."""
    return isinstance(payload, Mapping) and all(key in payload for key in _KEYS)


def decode(
    payload: Any,
    layers: ModelLayers,
    *,
    num_tokens: int | None = None,
    start: int | None = None,
    field: str = "routed_experts",
) -> SequenceRouting:
    """Decode a mapping, or an object with the same names as attributes.

    Raises:
        InvalidInput: the payload does not have this format.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    if not isinstance(payload, Mapping):
        payload = {key: getattr(payload, key) for key in (*_KEYS, "start") if hasattr(payload, key)}
    if not is_envelope(payload):
        raise InvalidInput.of(field, expected=f"the keys {', '.join(_KEYS)}", got=str(sorted(map(str, payload)))[:100])
    data, shape, dtype_name = (payload[key] for key in _KEYS)
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise InvalidInput.of(f"{field}.dtype", expected=" or ".join(_DTYPES), got=f"{dtype_name!r:.40}")
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise InvalidInput.of(f"{field}.shape", expected="a list of three numbers", got=f"{shape!r:.40}")
    if isinstance(data, str):
        data = base64_to_bytes(data, field)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidInput.of(f"{field}.data", expected="base64 or bytes", got=type(data).__name__)
    ids = bytes_to_array(data, _DTYPES[dtype_name], shape, field)
    said_start = payload.get("start")
    if said_start is not None:
        if not isinstance(said_start, int) or isinstance(said_start, bool):
            raise InvalidInput.of(f"{field}.start", expected="a whole number", got=f"{said_start!r:.40}")
        if start not in (None, said_start):
            raise InvalidInput.of(f"{field}.start", expected=f"{start}, as requested", got=said_start)
        start = said_start
    return sequence_routing(ids, layers, num_tokens=num_tokens, start=start, field=field)
