"""The routing trace file: a `.npz` that other programs may read and write.

Keys: `routed_experts` uint8 or uint16 [T, L, K], the rows of all sequences one after the other; `offsets` int64
[S + 1]; `num_experts` int; optional `domain` str [S]; optional fixed schedule `micro_batch`, `source_rank` and
`ep_group`, int32 [S] each. Readers ignore other keys.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from relibra.atomic_file import write_atomically
from relibra.errors import InvalidInput, InvalidTrace
from relibra.routing.npz_file import read_npz
from relibra.routing.trace import RoutingTrace

_REQUIRED = ("routed_experts", "offsets", "num_experts")
_OPTIONAL = ("domain", "micro_batch", "source_rank", "ep_group")
_HELP = "; `relibra record` makes a trace from what engines and trainers write (docs/formats.md)"


def read_trace(path: str | Path) -> RoutingTrace:
    """Read a trace and check it.

    Raises:
        InvalidTrace: the file does not exist, is not a `.npz`, is truncated or inconsistent; the message names the file
            or the key, and says what was expected, what came and how to make a trace.
        LimitExceeded: the arrays are far larger than their file (see `read_npz`).
    """
    try:
        values = _values(Path(path))
    except InvalidInput as error:
        raise InvalidTrace(f"{error}{_HELP}") from error
    num_experts = values.pop("num_experts")
    if num_experts.ndim != 0 or num_experts.dtype.kind not in "iu":
        raise InvalidTrace.of("num_experts", expected="one integer", got=f"{num_experts.dtype} {num_experts.shape}")
    return RoutingTrace(num_experts=int(num_experts), **values)


def _values(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InvalidInput.of(str(path), expected="a routing trace file (.npz)", got="no such file")
    values: dict[str, Any] = read_npz(path, _REQUIRED + _OPTIONAL)
    if not all(key in values for key in _REQUIRED):
        raise InvalidInput.of(
            str(path),
            expected=f"a routing trace with the keys {', '.join(_REQUIRED)}",
            got=f"only {', '.join(values)}" if values else "none of them",
        )
    return values


def write_trace(path: str | Path, trace: RoutingTrace) -> None:
    """Write a trace; the file appears complete or not at all."""
    arrays: dict[str, Any] = {
        key: getattr(trace, key) for key in _REQUIRED + _OPTIONAL if getattr(trace, key) is not None
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomically(Path(path), buffer.getvalue())
