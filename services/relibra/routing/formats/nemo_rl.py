"""NeMo-RL: `nrlre1:<int8|int16|int32>:<rows>x<layers>x<K>:<base64>`, or nested lists in older versions.

Payloads have all layers or MoE layers only. A row of -1 is a token without a route, so int8 must not be read as uint8.
A row of experts 0 to K - 1 in every layer is padding.
"""

from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import as_integers

MAGIC = "nrlre1:"
_DTYPES = {name: np.dtype(name) for name in ("int8", "int16", "int32")}
_MAX_DIGITS = 12


def read_ids(payload: Any, layers: ModelLayers, num_tokens: int | None, field: str) -> Any:
    """Return the ids in a string, in nested lists or in an array.

    Raises:
        InvalidInput: the payload does not have this format.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    ids = _decode_text(payload, field) if isinstance(payload, str) else as_integers(payload, field)
    if num_tokens is None and ids.ndim == 3 and len(ids) and (ids[-1] == np.arange(ids.shape[2])).all():
        ids = ids[:-1]  # NeMo-RL pads payloads to the full number of tokens
    return ids


def _decode_text(text: str, field: str) -> Any:
    parts = text.split(":", 3)
    if not text.startswith(MAGIC) or len(parts) != 4:
        raise InvalidInput.of(field, expected=f"{MAGIC}<dtype>:<rows>x<layers>x<top-k>:<base64>", got=f"{text[:40]!r}")
    _, dtype_name, shape_text, data = parts
    if dtype_name not in _DTYPES:
        raise InvalidInput.of(f"{field}.dtype", expected=" or ".join(_DTYPES), got=f"{dtype_name[:40]!r}")
    numbers = shape_text.split("x")
    if len(numbers) != 3 or not all(
        number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS for number in numbers
    ):
        raise InvalidInput.of(f"{field}.shape", expected="<rows>x<layers>x<top-k>", got=f"{shape_text[:40]!r}")
    shape = [int(number) for number in numbers]
    return bytes_to_array(base64_to_bytes(data, field), _DTYPES[dtype_name], shape, field)
