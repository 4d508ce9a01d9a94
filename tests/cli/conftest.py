"""A job behind a status service that requires a token, and the command line as a function."""

import asyncio
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import pytest
from typer.testing import CliRunner

from harness.services import CLUSTER, MODEL, Service, redis_server, redis_url, run, store  # noqa: F401
from harness.watched_job import WatchedJob
from relibra.cli.app import app
from relibra.planning.cost import CostModel
from relibra.planning.launch import Launch
from relibra.store import ALL_JOBS, EmbeddedRedis, Role, Store

Relibra = Callable[..., str]
Answering = Callable[..., AbstractContextManager[tuple[str, list]]]


@dataclass(frozen=True)
class Watched:
    """Two jobs and their status service.

    Step 0 of `job` was executed and has expired, step 1 was executed as planned, 2 fell back, 3 failed and 4 is being
    collected. `restarted` had steps 1 and 2 planned in its attempt 1, and has step 2 being collected in its attempt 2.
    """

    job: WatchedJob
    redis_url: str
    url: str
    token: str
    restarted_token: str
    viewer_token: str
    """A token for all jobs."""


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    async def fill(url: str) -> tuple[WatchedJob, list[str]]:
        async with Store.open(url) as opened:
            job = WatchedJob(opened, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2, cost=CostModel())
            await job.register()
            await job.report(0, await job.plan(0))
            await job.expire(0)
            await job.report(1, await job.plan(1))
            await job.plan(2)
            await job.report(2, None)
            await job.fail(3, "the load is [empty]")
            await job.collect(4)
            restarted = WatchedJob(opened, "restarted", model=MODEL, cluster=CLUSTER, num_micro_batches=2)
            await restarted.register(Launch(token="one", owner="host-a:4711"))
            await restarted.plan(1)
            await restarted.plan(2)
            await restarted.restart(Launch(token="two", owner="host-b:99"))
            await restarted.collect(2)
            tokens = [await opened.create_token(each, Role.VIEWER) for each in ("job", "restarted", ALL_JOBS)]
            return job, [token for _, token in tokens]

    with EmbeddedRedis(tmp_path_factory.mktemp("watched-redis")) as redis:
        job, tokens = asyncio.run(fill(redis.url))
        service = Service("status", redis.url, tmp_path_factory.mktemp("watched-status"), RELIBRA_AUTH="required")
        yield Watched(job, redis.url, service.address, *tokens)
        service.stop()


@pytest.fixture
def relibra(watched: Watched) -> Relibra:
    """A function that runs a verb with the job's token and returns its output, or raises its error."""

    def invoke(*arguments: object, status: int = 0, **environment: str) -> str:
        known = {"RELIBRA_STATUS_URL": watched.url, "RELIBRA_TOKEN": watched.token, "COLUMNS": "100"}
        result = CliRunner().invoke(app, [str(each) for each in arguments], env=known | environment)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.stdout

    return invoke


@pytest.fixture
def answering() -> Answering:
    """A server that gives every request the same response and records path and token of each request."""
    return _answering


@contextmanager
def _answering(
    status: HTTPStatus, body: bytes, tls: ssl.SSLContext | None = None, **headers: str
) -> Iterator[tuple[str, list]]:
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization")))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
