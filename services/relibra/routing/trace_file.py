"""The routing trace file: a `.npz` that other programs may read and write.

Keys: `routed_experts` uint8 or uint16 [T, L, K], the rows of all sequences one after the other; `offsets` int64
[S + 1]; `num_experts` int; optional `domain` str [S]; optional fixed schedule `micro_batch`, `source_rank` and
`ep_group`, int32 [S] each. Readers ignore other keys.
"""

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from relibra.atomic_file import write_atomically
from relibra.errors import InvalidTrace
from relibra.routing.trace import RoutingTrace

_REQUIRED = ("routed_experts", "offsets", "num_experts")
_OPTIONAL = ("domain", "micro_batch", "source_rank", "ep_group")
# zipfile, zlib and numpy raise these on bytes that are not theirs; MemoryError comes from headers of huge arrays.
_UNREADABLE = (
    ValueError,
    KeyError,
    OSError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def read_trace(path: str | Path) -> RoutingTrace:
    """Read a trace and check it.

    Raises:
        InvalidTrace: the file does not exist, is not a `.npz`, is truncated or inconsistent; the message names the key
            and says what was expected.
    """
    path = Path(path)
    try:
        file = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InvalidTrace.of(str(path), expected="a routing trace file (.npz)", got="no such file") from None
    except _UNREADABLE as error:
        raise InvalidTrace.of(str(path), expected="a complete .npz file", got=error) from error
    if not isinstance(file, NpzFile):
        raise InvalidTrace.of(str(path), expected="a .npz file with several keys", got="a single array")
    with file:
        values = {key: _value(file, key) for key in _REQUIRED + _OPTIONAL if key in _REQUIRED or key in file}
    num_experts = values.pop("num_experts")
    if num_experts.ndim != 0 or num_experts.dtype.kind not in "iu":
        raise InvalidTrace.of("num_experts", expected="one integer", got=f"{num_experts.dtype} {num_experts.shape}")
    return RoutingTrace(num_experts=int(num_experts), **values)


def write_trace(path: str | Path, trace: RoutingTrace) -> None:
    """Write a trace; the file appears complete or not at all."""
    arrays: dict[str, Any] = {
        key: getattr(trace, key) for key in _REQUIRED + _OPTIONAL if getattr(trace, key) is not None
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(Path(path), buffer.getvalue())


def _value(file: NpzFile, key: str) -> Any:
    if key not in file:
        raise InvalidTrace.of(key, expected=f"the keys {', '.join(_REQUIRED)}", got=f"only {', '.join(file) or 'none'}")
    try:
        return file[key]
    except _UNREADABLE as error:
        raise InvalidTrace.of(key, expected="a readable array without Python objects", got=error) from error
