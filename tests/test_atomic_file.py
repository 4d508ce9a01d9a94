import os
import stat
import threading
from pathlib import Path

import pytest

from harness.devices import device
from relibra.atomic_file import write_atomically


def test_content_replaces_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_what_was_there_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"one")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "file", b"")
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, b"")


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link, dangling = tmp_path / "folder" / "file", tmp_path / "link", tmp_path / "dangling"
    target.write_bytes(b"one")
    link.symlink_to(target)
    dangling.symlink_to(Path("folder", "new"))
    write_atomically(link, b"two")
    write_atomically(dangling, b"new")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (target.read_bytes(), (tmp_path / "folder" / "new").read_bytes()) == (b"two", b"new")
    assert sorted(each.name for each in (tmp_path / "folder").iterdir()) == ["file", "new"]


def test_a_loop_of_links_is_an_error(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "one", b"")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    write_atomically(path, b"two")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.touch()
    os.chown(path, 12345, 23456)
    write_atomically(path, b"two")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_a_read_only_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    path.chmod(0o400)
    with pytest.raises(PermissionError, match="read-only"):
        write_atomically(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_is_written_and_stays(tmp_path):
    link = tmp_path / "link"
    full, null = (device(name, tmp_path) for name in ("full", "null"))
    link.symlink_to(full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(link, b"data")
    write_atomically(null, b"data")
    assert link.is_symlink()
    for path in (full, null):
        assert stat.S_ISCHR(path.stat().st_mode)


def test_a_pipe_is_written(tmp_path):
    pipe, data = tmp_path / "pipe", bytes(300_000)
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, data)
    reader.join(timeout=30)
    assert read == [data]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
