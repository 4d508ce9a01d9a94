"""The process of the status service."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from relibra.errors import Unavailable
from relibra.status.app import create_app
from relibra.status.context import Context
from relibra.status.settings import StatusSettings
from relibra.store import Store

DRAIN_TIMEOUT_S = 5


class StatusServer:
    """The app of one store on one socket."""

    def __init__(self, settings: StatusSettings) -> None:
        """Bind the socket.

        Raises:
            Unavailable: the port is in use.
        """
        host, port = settings.host, settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio turns Nagle's algorithm off: it would hold back small answers for 40 ms.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self.url = f"http://{f'[{host}]' if family == socket.AF_INET6 else host}:{self._socket.getsockname()[1]}"
        self._settings = settings

    async def start(self) -> None:
        """Check that Redis answers, and listen.

        Raises:
            Unavailable: it does not.
        """
        self._store = Store.open(self._settings.redis_url)
        try:
            await self._store.ping()
        except Unavailable:
            await self._store.close()
            self._socket.close()
            raise
        self._socket.listen()
        app = create_app(self._store, self._settings)
        self._context: Context = app.state.context
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
        )
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve until `stop`."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self._store.close()

    def stop(self) -> None:
        """Let `run` return when the requests in flight are answered."""
        self._server.should_exit = True
        # Streams of news never end by themselves.
        self._context.live.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command line, which gives them one meaning in all services."""
        yield
