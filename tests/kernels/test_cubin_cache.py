"""The cache on disk: one content per key, no damaged entries, any number of processes."""

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.kernels.cubin_cache import cache_key, cached, default_folder


def _refuse() -> bytes:
    pytest.fail("built again")


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_keys_are_equal_for_equal_parts_only(one: list[str], other: list[str]) -> None:
    assert (cache_key(one) == cache_key(other)) == (one == other)


def test_what_was_built_is_found_again(tmp_path: Path) -> None:
    assert cached(tmp_path / "new", "key", lambda: b"code") == b"code"
    assert cached(tmp_path / "new", "key", _refuse) == b"code"
    assert cached(tmp_path / "new", "other", lambda: b"") == b""
    assert cached(tmp_path / "new", "other", _refuse) == b""


@pytest.mark.parametrize("damage", [b"", b"short", hashlib.sha256(b"other").digest() + b"code"])
def test_a_damaged_entry_is_built_anew(tmp_path: Path, damage: bytes) -> None:
    cached(tmp_path, "key", lambda: b"code")
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(damage)
    assert cached(tmp_path, "key", lambda: b"code") == b"code"
    assert cached(tmp_path, "key", _refuse) == b"code"


def test_a_folder_that_cannot_be_written_costs_a_build_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cached(tmp_path / "file" / "folder", "key", lambda: b"code") == b"code"


def _plant(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.bin").write_bytes(hashlib.sha256(b"evil").digest() + b"evil")
    return folder


def _world_writable(base: Path) -> Path:
    folder = _plant(base / "relibra" / "kernels")
    base.chmod(0o777)
    return folder


def _sticky_itself(base: Path) -> Path:
    folder = _plant(base / "relibra" / "kernels")
    folder.chmod(0o1777)
    return folder


def _link(base: Path) -> Path:
    target = _world_writable(base / "theirs")
    (base / "mine").symlink_to(target)
    return base / "mine"


def _foreign(base: Path) -> Path:
    folder = _plant(base / "relibra" / "kernels")
    os.chown(folder.parent, 12345, 12345)
    return folder


def _foreign_entry(base: Path) -> Path:
    folder = _plant(base / "relibra" / "kernels")
    os.chown(folder / "key.bin", 12345, 12345)
    return folder


@pytest.mark.parametrize("plant", [_world_writable, _sticky_itself, _link, _foreign, _foreign_entry])
def test_S6_code_that_another_user_can_have_written_is_not_run(tmp_path: Path, plant: Callable[[Path], Path]) -> None:
    if plant in (_foreign, _foreign_entry) and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    assert cached(plant(tmp_path), "key", lambda: b"code") == b"code"


def test_a_folder_below_a_sticky_one_is_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    folder = tmp_path / "relibra" / "kernels"
    assert cached(folder, "key", lambda: b"code") == b"code"
    assert cached(folder, "key", _refuse) == b"code"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached(tmp_path, "key", fail)
    assert list(tmp_path.iterdir()) == []


def test_many_processes_at_once_all_get_the_content_and_leave_one_file(tmp_path: Path) -> None:
    # The processes run the file by itself: importing torch in each of them would take longer than the race.
    module = sys.modules[cached.__module__].__file__
    code = f"""
import runpy
import sys
from pathlib import Path
cached = runpy.run_path({module!r})["cached"]
sys.stdin.readline()
for i in range(40):
    data = cached(Path({str(tmp_path)!r}), f"key{{i}}", lambda: bytes([i]) * 300_000)
    assert data == bytes([i]) * 300_000
"""
    processes = [subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE) for _ in range(6)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    assert [process.wait(60) for process in processes] == [0] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"key{i}.bin" for i in range(40))


def test_the_folder_follows_the_desktop_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "relibra" / "kernels"
