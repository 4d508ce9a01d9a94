"""Compiled kernels on disk, so that only the first start on a machine compiles."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from relibra.atomic_file import write_atomically

_DIGEST_BYTES = 32


def default_folder() -> Path:
    """`relibra/kernels` in XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relibra" / "kernels"


def cache_key(parts: Sequence[str]) -> str:
    """Digest of everything the compiled code depends on; parts are told apart, so ("a", "b") is not ("ab",)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(folder: Path, key: str, build: Callable[[], bytes]) -> bytes:
    """Return what is stored under `key`; where nothing sound is, build and store it.

    Any number of processes may do this at once: entries appear complete or not at all, all builders store the same, and
    the last one stays. An entry carries its digest; one that does not match is built anew. A folder that cannot be
    written costs the time of compiling, nothing else.
    """
    path = folder / f"{key}.bin"
    with suppress(OSError):
        entry = path.read_bytes()
        data = entry[_DIGEST_BYTES:]
        if entry[:_DIGEST_BYTES] == hashlib.sha256(data).digest():
            return data
    data = build()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, hashlib.sha256(data).digest() + data)
    return data
