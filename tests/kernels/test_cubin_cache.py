"""The cache on disk: one content per key, no damaged entries, any number of processes."""

import hashlib
import subprocess
import sys
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
