"""The one writer of files that appear complete or not at all."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` beside `path` and rename it into place: a reader or a crash never sees half a file.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
