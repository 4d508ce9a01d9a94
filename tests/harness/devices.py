"""Devices for tests that write to one. A mistake in the code must not replace a device of this machine."""

import os
import stat
from pathlib import Path

import pytest

_MINOR = {"full": 7, "null": 3}


def device(name: str, folder: Path) -> Path:
    """Return a device that works like `/dev/full` or `/dev/null`.

    Root gets a node of its own in `folder`. Another user gets a link to the real one, which only root can replace.
    """
    path = folder / name
    if os.geteuid() != 0:
        path.symlink_to(f"/dev/{name}")
        return path
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, _MINOR[name]))
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        pytest.skip("root may not make device nodes here, and could replace /dev/full by mistake")
    return path
