"""What a real Redis tells of its memory, its file and its clock."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from harness.services import Loop, eventually
from relibra.store import Store
from relibra.store.servers import ServerState


def test_L3_memory_that_fills_is_seen(store: Store, run: Loop, redis_url: str) -> None:
    calm = run(store.server_state())
    assert (calm.max_memory_bytes, calm.fails_to_rewrite) == (None, False)
    assert 0 < calm.memory_share < 0.5, "of the memory of this machine"
    assert abs(calm.clock_offset_s) < 60
    with Redis.from_url(redis_url) as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", 2 * used)
        try:
            full = run(store.server_state())
        finally:
            client.config_set("maxmemory", 0)
        assert full.max_memory_bytes == 2 * used
        assert 0.4 < full.memory_share < 0.9


def test_L3_a_rewrite_of_the_file_that_fails_is_seen_until_one_ends_well(
    store: Store, run: Loop, redis_url: str
) -> None:
    def rewrites() -> bool:
        return bool(client.info("persistence")["aof_rewrite_in_progress"])

    with Redis.from_url(redis_url) as client:
        pid = client.info("server")["process_id"]
        # Microseconds for each key, so that the rewrite takes until it is killed, as where memory is missing.
        client.config_set("rdb-key-save-delay", 10_000_000)
        client.mset({f"key:{index}": index for index in range(100)})
        try:
            client.bgrewriteaof()
            eventually(rewrites)
            (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            os.kill(int(child), signal.SIGKILL)
            eventually(lambda: not rewrites())
            assert run(store.server_state()).fails_to_rewrite
        finally:
            client.config_set("rdb-key-save-delay", 0)
            client.delete(*(f"key:{index}" for index in range(100)))
        client.bgrewriteaof()
        eventually(lambda: not run(store.server_state()).fails_to_rewrite)


@pytest.mark.parametrize(
    ("infos", "share", "fails", "offset_s"),
    [
        ([{}], 0, False, 0),
        ([{"used_memory": 9, "maxmemory": 10}, {"used_memory": 1, "maxmemory": 10}], 0.9, False, 0),
        ([{"used_memory": 9, "maxmemory": 0, "total_system_memory": 90}], 0.1, False, 0),
        ([{"aof_last_bgrewrite_status": "ok"}, {"aof_last_bgrewrite_status": "err"}], 0, True, 0),
        ([{"server_time_usec": 40_000_000}, {"server_time_usec": 103_000_000}], 0, False, 60),
    ],
)
def test_the_worst_server_counts(infos: list[dict[str, Any]], share: float, fails: bool, offset_s: float) -> None:
    state = ServerState.of([info | {"asked_at": 100.0} for info in infos])
    assert (state.memory_share, state.fails_to_rewrite, state.clock_offset_s) == (share, fails, offset_s)
