"""Compiled kernels on disk, so that only the first start on a machine compiles."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from relibra.atomic_file import write_atomically

_DIGEST_BYTES = 32


def default_folder() -> Path:
    """Return `relibra/kernels` in XDG_CACHE_HOME, or in ~/.cache if that variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relibra" / "kernels"


def cache_key(parts: Sequence[str]) -> str:
    """Return a digest of everything that compiled code depends on; ("a", "b") and ("ab",) give different digests."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(folder: Path, key: str, build: Callable[[], bytes]) -> bytes:
    """Return the entry of `key`; if it is missing or damaged, build and store it.

    Any number of processes may call this function at once: an entry appears complete or not at all, and all processes
    store the same content. An entry carries its digest; if the digest does not match, the entry is built again. A
    folder that cannot be written costs the time of compiling and nothing else.
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
