"""The one writer of files that appear complete or not at all."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and rename it into place: a reader or a crash never sees half a file.

    A symbolic link stays, and the file that it points to is replaced. A file keeps its permissions and its owner. A
    pipe, a terminal or another device cannot be replaced; it is opened and written.

    Raises:
        PermissionError: the file is read-only. This holds for root too: someone protected the file on purpose.
        OSError: the folder does not exist or cannot be written, or the device does not take the data.
    """
    try:
        stat_result = path.stat()
    except FileNotFoundError:
        stat_result = None
    if stat_result is not None and stat.S_ISDIR(stat_result.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat_result is not None and not stat.S_ISREG(stat_result.st_mode):
        _write_device(path, data)
        return
    target = Path(os.path.realpath(path))
    if stat_result is not None and not (stat_result.st_mode & 0o222 and os.access(target, os.W_OK)):
        raise PermissionError(errno.EACCES, "the file is read-only", str(path))
    partial = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            if stat_result is not None:
                _give(file.fileno(), stat_result)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _give(descriptor: int, like: os.stat_result) -> None:
    """Give an open file the owner and the permissions of another file; only root can change the owner."""
    with suppress(PermissionError):
        os.fchown(descriptor, like.st_uid, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))


def _write_device(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY), "wb", buffering=0) as device:
        left = memoryview(data)
        while left:
            left = left[device.write(left) :]
