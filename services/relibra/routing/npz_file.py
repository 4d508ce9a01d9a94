"""Arrays of a `.npz` file, with sizes compared before anything of that size exists (S7).

A few megabytes of compressed zeros unpack to gigabytes. Routing does not compress like that: a file whose arrays are
large and many times the size of the file is refused.
"""

import os
import struct
import zipfile
import zlib
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, LimitExceeded, one_line
from relibra.routing.npy_header import read_npy_header

EXPANSION_VARIABLE = "RELIBRA_MAX_EXPANSION"
MAX_EXPANSION = 64
"""How many times the size of their file the arrays may have, unless they are small."""
_SMALL_SIZE_BYTES = 256 << 20
_HEAD_SIZE_BYTES = 40
_COMPLETE = "a complete .npz file"

# zipfile and zlib raise these on bytes that are not theirs.
_UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    KeyError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def read_npz(path: Path, keys: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file under some keys, as far as the file has them; other keys are not read.

    Raises:
        InvalidInput: the file is not a complete `.npz`, or an array is damaged or holds Python objects; the message
            names the key.
        LimitExceeded: the arrays are larger than 256 MiB and larger than 64 times their file. The environment variable
            `RELIBRA_MAX_EXPANSION` sets another number.
    """
    try:
        _check_is_zip(path)
        with zipfile.ZipFile(path) as file:
            names = set(file.namelist())
            name_of = {key: name for key in keys for name in (f"{key}.npy", key) if name in names}
            infos = {key: file.getinfo(name) for key, name in name_of.items()}
            _check_expansion(path, sum(info.file_size for info in infos.values()))
            return {key: _read(file, info, key) for key, info in infos.items()}
    except InvalidInput:
        raise
    except _UNREADABLE as error:
        raise InvalidInput.of(str(path), expected=_COMPLETE, got=f"a damaged or truncated one ({error})") from error


def _check_is_zip(path: Path) -> None:
    """Refuse a file that cannot be a `.npz`, in words that tell what it is."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_SIZE_BYTES)
    except OSError as error:
        raise InvalidInput.of(str(path), expected=_COMPLETE, got=error.strerror or error) from error
    if head.startswith(np.lib.format.MAGIC_PREFIX):
        raise InvalidInput.of(str(path), expected="a .npz file with several keys", got="a single array")
    if not head:
        raise InvalidInput.of(str(path), expected=_COMPLETE, got="an empty file")
    if not head.startswith(b"PK"):
        begin = head.decode("utf-8", "replace").partition("\n")[0]
        raise InvalidInput.of(str(path), expected=_COMPLETE, got=f"a file that begins with {begin!r}")


def _check_expansion(path: Path, unpacked_size_bytes: int) -> None:
    allowed = _max_expansion()
    size_bytes = path.stat().st_size
    if unpacked_size_bytes > max(_SMALL_SIZE_BYTES, allowed * size_bytes):
        raise LimitExceeded(
            f"{path}: {size_bytes} bytes that unpack to {unpacked_size_bytes}, more than {allowed} times as many; "
            f"if the file is what you expect, set {EXPANSION_VARIABLE} to a larger number"
        )


def _max_expansion() -> int:
    text = os.environ.get(EXPANSION_VARIABLE, "")
    if not text:
        return MAX_EXPANSION
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput.of(EXPANSION_VARIABLE, expected="a whole number of at least 1", got=text)
    return int(text)


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo, key: str) -> NDArray[Any]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidInput.of(key, expected="an array as numpy packs it", got=f"compression {info.compress_type}")
    try:
        with file.open(info) as stream:
            shape, _, dtype = read_npy_header(stream, key)
            if dtype.hasobject:
                raise InvalidInput.of(key, expected="a readable array without Python objects", got=dtype)
            size_bytes = prod(shape) * dtype.itemsize
            left = info.file_size - stream.tell()
            if min(shape, default=0) < 0 or size_bytes != left:
                raise InvalidInput.of(
                    key, expected=f"{size_bytes} bytes for {dtype} {one_line(list(shape))}", got=f"{left} bytes"
                )
        with file.open(info) as stream:
            array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except InvalidInput:
        raise
    except (*_UNREADABLE, MemoryError) as error:
        raise InvalidInput.of(key, expected="a readable array without Python objects", got=error) from error
    return array
