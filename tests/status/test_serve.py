"""How the process of the status service starts and stops."""

import http.client
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from redis import Redis

from harness.services import Loop, Service
from relibra.errors import Unsupported
from relibra.status.serve import StatusServer
from relibra.status.settings import StatusSettings
from relibra.store.keys import SCHEMA, SCHEMA_VERSION

NUM_STREAMS = 20


@contextmanager
def open_stream(address: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)) as connection:
        connection.request("GET", "/v1/events")
        yield connection.getresponse()


@pytest.mark.integration
def test_it_stops_promptly_with_open_streams_and_browsers_reconnect(redis_url: str, tmp_path: Path) -> None:
    service = Service("status", redis_url, tmp_path, RELIBRA_POLL_INTERVAL_S="0.001")
    try:
        with ExitStack() as held:
            kept_alive = held.enter_context(closing(http.client.HTTPConnection(service.address[len("http://") :])))
            kept_alive.request("GET", "/healthz")
            kept_alive.getresponse().read()
            streams = [held.enter_context(open_stream(service.address)) for _ in range(NUM_STREAMS)]
            assert all(stream.readline() == b"retry: 2000\n" for stream in streams)
            # Streams that viewers closed before must not delay the stop either.
            for stream in streams[NUM_STREAMS // 2 :]:
                stream.close()
            service.process.terminate()
            assert service.process.wait(timeout=120) == 0
            assert "poll_interval_s=0.001" in service.log(), "the log has the settings"
            assert "graceful shutdown exceeded" not in service.log(), "the stop waited for a stream"
            for stream in streams[: NUM_STREAMS // 2]:
                assert b"event: store" in stream.read(), "the stream ended in order and was not cut off"
    finally:
        service.stop()


def test_a_redis_of_another_schema_is_refused(redis_url: str, run: Loop) -> None:
    with Redis.from_url(redis_url) as client:
        client.set(SCHEMA, SCHEMA_VERSION - 1)
    server = StatusServer(StatusSettings(redis_url=redis_url, port=0))
    with pytest.raises(Unsupported, match=f"schema version {SCHEMA_VERSION - 1}, this relibra reads"):
        run(server.start())
