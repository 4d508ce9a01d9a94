"""Compiled kernels on disk, so that only the first start on a machine compiles.

Code from this folder runs in the training process. An entry therefore counts only if nobody but this user and root can
have written it.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from relibra.atomic_file import write_atomically

logger = logging.getLogger(__name__)

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
    folder that cannot be written, or that another user could have written, costs the time of compiling and nothing
    else.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        fault = writable_by_others(folder)
    except OSError:
        return build()
    if fault is not None:
        _warn(fault)
        return build()
    path = folder / f"{key}.bin"
    with suppress(OSError):
        entry = _read_own(path)
        data = entry[_DIGEST_BYTES:]
        if entry[:_DIGEST_BYTES] == hashlib.sha256(data).digest():
            return data
    data = build()
    with suppress(OSError):
        write_atomically(path, hashlib.sha256(data).digest() + data)
    return data


@cache
def _warn(fault: str) -> None:
    """Log a fault once."""
    logger.warning("compiled kernels are not kept: %s; set XDG_CACHE_HOME to a folder of your own", fault)


def writable_by_others(folder: Path) -> str | None:
    """Return which folder on the way to `folder`, an absolute path, another user could change, or None.

    Another user could change a folder that belongs to that user, or that everybody may write. In a folder with the
    sticky bit, such as /tmp, nobody can replace what belongs to others.

    Raises:
        OSError: a folder does not exist or cannot be looked at.
    """
    for each in (folder, *folder.parents):
        found = each.stat()
        if found.st_uid not in (0, os.geteuid()):
            return f"{each} belongs to user {found.st_uid}"
        if found.st_mode & stat.S_IWOTH and (each == folder or not found.st_mode & stat.S_ISVTX):
            return f"every user may write {each}"
    return None


def _read_own(path: Path) -> bytes:
    """Read a file that only this user and root can have written.

    Raises:
        OSError: the file does not exist, is a link, or belongs to another user.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
            raise PermissionError(f"another user can have written {path}")
        return file.read()
