"""A viewer that asks for much, or reads slowly, waits for itself alone."""

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, Loop, Service, eventually
from harness.watched_job import WatchedJob
from relibra.errors import TooManyCalls
from relibra.status.refusals import Bound, Refusals
from relibra.status.requests import Requests
from relibra.store import Store

READER, OTHER = "127.0.0.2", "127.0.0.3"
"""Without tokens viewers are told apart by their addresses."""
LARGE = "/v1/jobs/large/steps/1/reports?realised=true"
NUM_MICRO_BATCHES = 90_000


def test_S6_a_viewer_waits_for_its_own_turns_and_is_refused_beyond_its_limit(run: Loop) -> None:
    async def ask() -> None:
        refusals, may_end, begun = Refusals(), asyncio.Event(), asyncio.Queue[str]()
        requests = Requests(refusals, max_per_viewer=4)

        async def request(viewer: str) -> None:
            async with requests.turn(viewer):
                begun.put_nowait(viewer)
                await may_end.wait()

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for viewer in ("one", "one", "one", "one", "other"):
                tasks.create_task(request(viewer))
            assert sorted([await begun.get() for _ in range(3)]) == ["one", "one", "other"]
            with pytest.raises(TooManyCalls, match=r"viewer 'one' has 4 requests open .*max_requests_per_viewer"):
                await request("one")
            assert begun.empty()
            may_end.set()
        assert begun.qsize() == 2
        assert refusals.counts == {Bound.REQUESTS: 1}

    run(ask())


@pytest.fixture
def large(store: Store, run: Loop) -> None:
    """A step whose reports are an answer of 6 MB, more than the kernel takes for a client that reads nothing."""

    async def fill() -> None:
        job = WatchedJob(store, "large", model=MODEL, cluster=CLUSTER, num_micro_batches=2)
        await job.register()
        await job.collect(1)
        load_ML = np.random.default_rng(0).integers(1000, 9999, (NUM_MICRO_BATCHES, MODEL.num_layers))
        await job.report_loads(1, load_ML)

    run(fill())


@pytest.fixture
def serve(redis_url: str, tmp_path: Path, large: None) -> Iterator[Callable[..., Service]]:
    with ExitStack() as started:

        def start(**variables: str) -> Service:
            service = Service("status", redis_url, tmp_path, **variables)
            started.callback(service.stop)
            return service

        yield start


def ask_and_read_nothing(service: Service) -> socket.socket:
    url = urlsplit(service.address)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    reader.bind((READER, 0))
    reader.connect((url.hostname, url.port))
    reader.sendall(f"GET {LARGE} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


def get(service: Service, path: str, address: str) -> http.client.HTTPResponse:
    url = urlsplit(service.address)
    with closing(http.client.HTTPConnection(url.netloc, timeout=120, source_address=(address, 0))) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
    return response


def counted(service: Service, setting: Bound) -> bool:
    with closing(http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=120)) as connection:
        connection.request("GET", "/metrics")
        return (
            f'relibra_status_refused_total{{setting="{setting}"}} 0.0' not in connection.getresponse().read().decode()
        )


@pytest.mark.integration
def test_S6_readers_that_take_nothing_keep_their_own_turns_and_no_turn_of_others(serve: Callable[..., Service]) -> None:
    service = serve(RELIBRA_MAX_REQUESTS_PER_VIEWER="2", RELIBRA_ANSWER_TIMEOUT_S="600")
    with closing(ask_and_read_nothing(service)), closing(ask_and_read_nothing(service)):
        refused = get(service, "/v1/jobs", READER)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert get(service, "/v1/jobs", OTHER).status == 200
        assert get(service, "/healthz", READER).status == 200
        assert counted(service, Bound.REQUESTS)
    eventually(lambda: get(service, "/v1/jobs", READER).status == 200)


@pytest.mark.integration
def test_S7_the_service_hangs_up_on_a_reader_that_takes_nothing(serve: Callable[..., Service]) -> None:
    service = serve(RELIBRA_ANSWER_TIMEOUT_S="0.2")
    with closing(ask_and_read_nothing(service)), closing(ask_and_read_nothing(service)):
        assert get(service, "/v1/jobs", READER).status == 200, "its turn comes once the others are hung up on"
        assert counted(service, Bound.ANSWER_TIMEOUT)
    assert "an answer was not read for 0.2 s; hung up" in service.log()
