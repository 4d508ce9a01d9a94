"""The behaviour that all parts of the store share."""

import asyncio
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from redis import Redis, exceptions

from harness.redis_deployments import free_ports
from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually
from relibra.errors import Unavailable
from relibra.store import Store
from relibra.store.connection import Connected
from relibra.store.embedded import find_redis_server


@pytest.mark.parametrize("part", ["ping", "job_ids", "pending_steps"])
def test_a_call_that_is_cancelled_ends_wherever_it_is(store: Store, run: Loop, part: str) -> None:
    async def cancel_after(num_turns: int) -> bool:
        """Cancel a call after `num_turns` turns of the event loop; return whether the call was still running."""
        call = asyncio.create_task(getattr(store, part)())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        if is_under_way := not call.done():
            call.cancel()
            await asyncio.wait({call})
            assert call.cancelled(), f"the call went on although it was cancelled {num_turns} turns after it began"
        await store.ping()
        return is_under_way

    async def cancel_everywhere() -> int:
        await store.ping()
        return sum([await cancel_after(num_turns) for num_turns in range(40)])

    assert run(cancel_everywhere()) > 2


def test_what_a_part_asks_in_public_raises_unavailable_and_only_that(store: Store, run: Loop) -> None:
    class Part(Connected):
        async def ask(self) -> None:
            await self._ask()

        async def _ask(self) -> None:
            raise exceptions.ConnectionError("the server is gone")

    part = Part(store._redis)
    with pytest.raises(Unavailable, match="Redis does not serve: the server is gone"):
        run(part.ask())
    with pytest.raises(exceptions.ConnectionError):
        run(part._ask())


def test_L2_scripts_that_redis_forgets_all_the_time_run_all_the_same(store: Store, run: Loop, redis_url: str) -> None:
    has_ended = threading.Event()

    def forget() -> None:
        with Redis.from_url(redis_url) as client:
            while not has_ended.is_set():
                client.script_flush()

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    try:
        for _ in range(200):
            run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    finally:
        has_ended.set()
        forgetting.join()


def test_a_redis_in_protected_mode_is_named_as_the_cause(run: Loop, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback, from which protected mode admits everyone")
        host = probe.getsockname()[0]
    port = next(free_ports())
    # Redis 6 protects only a server that was given no address to bind.
    options = ["--port", str(port), "--protected-mode", "yes", "--dir", str(tmp_path), "--save", ""]
    redis = subprocess.Popen([find_redis_server(), *options], stdout=subprocess.DEVNULL)

    async def ask() -> None:
        async with Store.open(f"redis://{host}:{port}") as store:
            await store.ping()

    def refusal() -> str:
        with pytest.raises(Unavailable) as caught:
            run(ask())
        return str(caught.value)

    try:
        said = eventually(lambda: said if "Connect call failed" not in (said := refusal()) else "")
        assert "runs in protected mode: give it a password" in said
    finally:
        redis.terminate()
        redis.wait(30)
