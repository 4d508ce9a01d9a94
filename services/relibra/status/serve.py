"""The process of the status service."""

import asyncio
import contextlib
import gc
import logging
import socket
import sys
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from relibra.errors import RelibraError, Unavailable
from relibra.status.app import create_app, create_metrics_app
from relibra.status.connections import ConnectionLimits, bounded_protocol
from relibra.status.settings import StatusSettings
from relibra.status.ways import CompareWays
from relibra.store import Store

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 5
_SWITCH_INTERVAL_S = 0.001
"""How long a worker may run on while the event loop waits for the interpreter; by default Python takes 0.005 s."""


class StatusServer:
    """Serves the application on one socket, and its metrics on a second one if the settings name a port for them."""

    def __init__(self, settings: StatusSettings, compare: CompareWays | None = None) -> None:
        """Bind the sockets; `compare` is that of `create_app`.

        Raises:
            Unavailable: a port is in use.
        """
        ports = [settings.port] if settings.metrics_port is None else [settings.port, settings.metrics_port]
        self._sockets: list[socket.socket] = []
        try:
            for port in ports:
                self._sockets.append(_bind(settings.host, port))
        except Unavailable:
            self._close_sockets()
            raise
        self.urls = [_url(listener) for listener in self._sockets]
        """The URL of the application, then the URL of its metrics if they have a port."""
        self._settings, self._compare = settings, compare

    @property
    def url(self) -> str:
        """The URL of the application."""
        return self.urls[0]

    async def start(self) -> None:
        """Check that Redis responds with data that this relibra can read, then listen.

        Raises:
            Unavailable: Redis does not respond.
            Unsupported: Redis holds another schema version.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._store = Store.open(self._settings.redis_url)
        try:
            await self._store.check_schema()
        except RelibraError:
            await self._store.close()
            self._close_sockets()
            raise
        app = create_app(self._store, self._settings, self._compare)
        self._context = app.state.context
        apps = [app, create_metrics_app(self._context, self._settings)]
        limits = ConnectionLimits(
            max_connections=self._settings.max_connections,
            head_timeout_s=self._settings.head_timeout_s,
            answer_timeout_s=self._settings.answer_timeout_s,
        )
        protocol = bounded_protocol(limits, self._context.refusals)
        self._servers = [_Server(_config(app, protocol)) for app, _ in zip(apps, self._sockets, strict=False)]
        for listener in self._sockets:
            listener.listen()
        logger.info("status service on %s with %s", self.url, self._settings.changes)
        for url in self.urls[1:]:
            logger.info("metrics on %s/metrics", url)
        # Imported modules live as long as the process. Frozen, they no longer cost each full collection 0.1 s.
        gc.collect()
        gc.freeze()

    async def run(self) -> None:
        """Serve until `stop`."""
        try:
            serving = zip(self._servers, self._sockets, strict=True)
            await asyncio.gather(*(server.serve(sockets=[listener]) for server, listener in serving))
        finally:
            await self._store.close()

    def stop(self) -> None:
        """Make `run` return once the requests in flight are answered."""
        for server in self._servers:
            server.should_exit = True
        # Event streams would never end on their own.
        self._context.live.close()

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is explicit; Nagle would delay small responses by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}. Choose another port") from error
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _config(app: FastAPI, protocol: type[asyncio.Protocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
    )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command line, which handles them in the same way for all services."""
        yield
