"""A planner for one job, which rank 0 starts beside itself and which ends with rank 0, however rank 0 ends.

The planner comes with a Redis and a status service of its own (`relibra up`). If all ranks are on one machine, it
listens on loopback and asks nobody for a token, as a planner does by default. Otherwise it listens on all interfaces
and serves only callers with a token, which rank 0 makes for this job and hands to the other ranks. These connections
are not encrypted, like those between the ranks themselves.
"""

import functools
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from relibra.errors import InvalidInput, RelibraError, Unavailable
from relibra.plugins.settings import EMBEDDED, PluginSettings
from relibra.tied_process import tie

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 10.0
_TOKEN_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.05
START_TIMEOUT_S = 300.0
"""Longer than a busy machine needs, and less than the 600 s after which NCCL would end the ranks that wait."""
_TELL_INTERVAL_S = 15.0
"""How often the log says that the services are still starting."""
_LOG_TAIL_CHARS = 2000
_NEEDS = (
    "an embedded planner needs the packages of relibra's planner extra, in the Python of the trainer, and a "
    "redis-server on the machine of rank 0; or run a planner elsewhere, and name it as host:port"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How ranks reach the planner, or why there is none."""

    address: str = ""
    token: str | None = None
    refusal: RelibraError | None = None


def resolve_planner(settings: PluginSettings) -> PluginSettings:
    """Collective over all ranks: return the settings with the planner's address; start the planner if it is embedded.

    If callers need a token, this call sets `RELIBRA_TOKEN` in the environment of every rank.

    Raises:
        InvalidInput: ranks name different planners.
        Unavailable: the embedded planner did not start, or a rank cannot reach it. All ranks raise this error.
    """
    told = _tell((settings.planner, socket.gethostname()))
    named = {planner: rank for rank, (planner, _) in reversed(list(enumerate(told)))}
    if len(named) > 1:
        raise InvalidInput.of(
            "relibra.planner",
            expected="one planner for all ranks",
            got=", ".join(f"{planner} on rank {rank}" for planner, rank in sorted(named.items())),
        )
    if settings.planner != EMBEDDED:
        return settings
    access = Access()
    if dist.get_rank() == 0:
        try:
            access = start(settings.job, is_local=len({host for _, host in told}) == 1)
        except RelibraError as error:
            access = Access(refusal=error)
        except Exception as error:  # any error: the other ranks wait to hear from this one
            access = Access(refusal=Unavailable(f"the embedded planner did not start: {type(error).__name__}: {error}"))
    shared = [access]
    dist.broadcast_object_list(shared, src=0)
    (access,) = shared
    if access.refusal is not None:
        raise access.refusal
    _check_reachable(access.address)
    if access.token is not None:
        os.environ["RELIBRA_TOKEN"] = access.token
    return replace(settings, planner=access.address)


@functools.cache
def start(job: str, *, is_local: bool) -> Access:
    """Start planner, status service and Redis of a job, once in this process; return how to reach the planner.

    Args:
        job: the name of the job.
        is_local: whether all ranks are on this machine.

    Raises:
        Unavailable: they do not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="relibra-embedded-"))
    host, name = ("127.0.0.1", "127.0.0.1") if is_local else addresses(os.environ.get("MASTER_ADDR", ""))
    environment = os.environ | {"RELIBRA_AUTH": "none" if is_local else "required", "RELIBRA_PLAINTEXT": "true"}
    environment.pop("RELIBRA_REDIS_URL", None)  # of another planner
    command = [sys.executable, "-m", "relibra.cli", "up", "--host", host, "--port", "0", "--status-port", "0"]
    command += ["--ready-file", str(folder / "ready.json")]
    command += [] if environment.get("RELIBRA_DATA_DIR") else ["--temporary-data"]
    services = _Services(command, environment, folder / "services.log")
    ready = services.wait_until_ready(folder / "ready.json")
    # The address in the file is that on which the planner listens, which may be all interfaces.
    address, pages = (f"{name}:{ready[key].rpartition(':')[2]}" for key in ("planner", "status"))
    access = Access(address=address, token=None if is_local else _token(ready["redis"]))
    log.warning(
        "relibra started a planner for job %s at %s, which ends with this process; its pages: http://%s/, its Redis: "
        "%s, its log: %s%s",
        job,
        address,
        pages,
        ready["redis"],
        folder / "services.log",
        ""
        if is_local
        else "; it listens on all interfaces and serves callers with a token only, without encryption; `relibra tokens "
        f"create --role viewer --all-jobs --redis-url {ready['redis']}` prints one for the pages",
    )
    return access


class _Services:
    """`relibra up` as a child of this process. A thread of its own starts it and waits for its end.

    Linux ends the child when the thread ends that started it, and a framework may call from a thread that does not
    last.
    """

    def __init__(self, command: list[str], environment: dict[str, str], log_path: Path) -> None:
        self._command, self._environment, self._log_path = command, environment, log_path
        self._is_started = threading.Event()
        self._is_ready = False
        self._failure: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._run, name="relibra-embedded-planner", daemon=True).start()

    def wait_until_ready(self, ready_file: Path) -> dict[str, Any]:
        """Return what the services wrote to their ready file.

        Raises:
            Unavailable: they ended before they were ready, or hang.
        """
        self._is_started.wait()
        began_s = told_s = time.monotonic()
        while not ready_file.exists():
            now_s = time.monotonic()
            if self._process is None or self._process.poll() is not None or now_s - began_s > START_TIMEOUT_S:
                raise Unavailable(f"the embedded planner did not start: {self._reason()}; {_NEEDS}")
            if now_s - told_s >= _TELL_INTERVAL_S:
                told_s = now_s
                text = "the embedded planner has been starting for %.0f s; its log is %s"
                log.warning(text, now_s - began_s, self._log_path)
            time.sleep(_POLL_INTERVAL_S)
        self._is_ready = True
        ready: dict[str, Any] = json.loads(ready_file.read_text())
        return ready

    def _reason(self) -> str:
        if self._process is None:
            return str(self._failure)
        status = self._process.poll()
        if status is None:
            self._process.kill()  # its children end with it
        state = f"not ready after {START_TIMEOUT_S:g} s" if status is None else f"exit status {status}"
        tail = self._log_path.read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()
        return f"{state}; its log {self._log_path} ends with:\n{tail}\n"

    def _run(self) -> None:
        try:
            with self._log_path.open("wb") as output:
                self._process = subprocess.Popen(
                    tie(self._command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C in a terminal reaches it last, when rank 0 has ended
                )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._is_started.set()
        status = self._process.wait()
        if self._is_ready:
            log.error(
                "relibra: the embedded planner ended with exit status %s, so training goes on without plans; its log "
                "%s says why, and a restart of the job starts a new planner",
                status,
                self._log_path,
            )


def addresses(master: str) -> tuple[str, str]:
    """Return where to listen, and the name under which other machines reach this one.

    Args:
        master: `MASTER_ADDR`, under which all ranks have met rank 0 already.
    """
    name = socket.gethostname() if master in ("", "localhost", "::1") or master.startswith("127.") else master
    return ("::", f"[{name}]") if ":" in name else ("0.0.0.0", name)


def _token(redis_url: str) -> str:
    """Return a new token for the trainer ranks of a job, and of the jobs of its other models at the same planner.

    Raises:
        Unavailable: it could not be made.
    """
    made = subprocess.run(
        [sys.executable, "-m", "relibra.cli", "tokens", "create", "--role", "trainer", "--all-jobs"],
        env=os.environ | {"RELIBRA_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=_TOKEN_TIMEOUT_S,
        check=False,
    )
    if made.returncode:
        raise Unavailable(f"no token could be made: {made.stderr.strip()[-_LOG_TAIL_CHARS:]}")
    return made.stdout.strip()


@functools.cache  # a planner that has died since costs balance only
def _check_reachable(address: str) -> None:
    """Collective over all ranks: connect to the planner, until all ranks have reached it once.

    Raises:
        Unavailable: a rank cannot connect.
    """
    host, _, port = address.rpartition(":")
    failure = ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        failure = f"{socket.gethostname()} ({error})"
    failures = sorted({text for text in _tell(failure) if text})
    if failures:
        raise Unavailable(
            f"the embedded planner at {address} cannot be reached from {', '.join(failures)}; set MASTER_ADDR to a "
            "name of rank 0's machine that all machines reach, and open the port, or run a planner elsewhere and name "
            "it"
        )


def _tell(mine: Any) -> list[Any]:
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told
