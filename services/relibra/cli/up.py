"""`relibra up`: Redis, planner and status service on this machine.

Planner and status service run as separate processes, started by their own verbs, so that each can die or be replaced
without the other. All of them end with this process, even if it is killed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra.cli.service import STOP_SIGNALS, Host, ReadyFile, start_logging, write_ready_file
from relibra.environment import unknown_variables
from relibra.tied_process import tie

_POLL_INTERVAL_S = 0.05
_STOP_TIMEOUT_S = 30.0
"""Longer than the planner takes to drain."""


def up(
    data_dir: Annotated[
        Path, typer.Option(envvar="RELIBRA_DATA_DIR", help="Folder of the Redis that this command starts.")
    ] = Path("relibra-data"),
    temporary_data: Annotated[
        bool, typer.Option("--temporary-data", help="Use a temporary data directory, and remove it at the end.")
    ] = False,
    redis_url: Annotated[
        str | None,
        typer.Option(envvar="RELIBRA_REDIS_URL", help="Use this Redis instead of starting one."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the planner; 0 takes a free one.")] = 7420,
    status_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the status service; 0 takes a free one.")
    ] = 7421,
    ready_file: ReadyFile = None,
) -> None:
    """Start Redis, planner and status service on this machine, and stop them on Ctrl-C.

    Only this machine can connect unless --host says otherwise. Planner and status service read their other settings
    from the environment. RELIBRA_METRICS_PORT applies to the planner only, because the status service has /metrics on
    its own port.
    """
    start_logging()
    stop = _Stop()
    for number in STOP_SIGNALS:
        signal.signal(number, stop.ask)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relibra-up-")))
        ready: dict[str, Any] = {"pids": {}}
        redis = None
        if redis_url is None:
            from relibra.store import EmbeddedRedis

            data_dir = folder / "data" if temporary_data else data_dir
            redis = stack.enter_context(EmbeddedRedis(data_dir, ends_with_caller=True))
            redis_url = redis.url
            ready |= {"redis": redis.url, "pids": {"redis": redis.pid}}
        # On a terminal, the lines below are what a person needs; in a pipe or a container, the log is.
        log_dir = data_dir if redis is not None and not temporary_data and sys.stderr.isatty() else None
        services = [
            stack.enter_context(
                _Service(verb, folder, redis_url, host, number, log_dir, has_own_redis=redis is not None)
            )
            for verb, number in (("planner", port), ("status", status_port))
        ]
        for service in services:
            addresses = service.wait_until_ready(stop)
            if addresses is None:
                return
            ready = {**ready, **addresses, "pids": ready["pids"] | addresses["pids"]}
        typer.echo("relibra is up; Ctrl-C stops it")
        typer.echo(f"  planner  {ready['planner']}: trainers connect here; steps are planned once its log says ready")
        typer.echo(f"  status   {ready['status']}: open it in a browser")
        if redis is not None:
            typer.echo(f"  redis    {redis.url}, in {data_dir}")
        if log_dir is not None:
            typer.echo(f"  log      {log_dir}/planner.log and status.log")
        write_ready_file(ready_file, ready)
        while not stop.wait(_POLL_INTERVAL_S):
            if redis is not None and redis.poll() is not None:
                typer.echo(
                    f"redis-server exited with status {redis.poll()}; stopping. See {data_dir}/redis.log", err=True
                )
                raise typer.Exit(1)
            for service in services:
                service.report_exit()


class _Stop:
    """Whether a signal has asked this command to stop.

    It is no `threading.Event`: a signal may come while the main thread holds the lock of the event, and its handler
    would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._is_asked = False

    def ask(self, *_: object) -> None:
        self._is_asked = True

    def wait(self, timeout_s: float) -> bool:
        """Wait for up to `timeout_s`; return whether the command must stop."""
        if not self._is_asked:
            time.sleep(timeout_s)
        return self._is_asked


class _Service:
    """A verb of the command line, run as a child process."""

    def __init__(
        self,
        verb: str,
        folder: Path,
        redis_url: str,
        host: str,
        port: int,
        log_dir: Path | None,
        *,
        has_own_redis: bool,
    ) -> None:
        self._verb, self._log = verb, None if log_dir is None else log_dir / f"{verb}.log"
        self._ready_file = folder / f"{verb}.json"
        self._redis_url = redis_url
        self._has_own_redis = has_own_redis
        self._options = ["--host", host, "--port", str(port)]
        self._is_reported = False

    def __enter__(self) -> "_Service":
        command = [sys.executable, "-m", "relibra.cli", self._verb, *self._options]
        # The URL may contain a password, so it goes through the environment: all users can see command lines.
        # Neither service computes on a GPU, and a CUDA context would take memory from a trainer on the same machine.
        environment = os.environ | {"RELIBRA_REDIS_URL": self._redis_url, "CUDA_VISIBLE_DEVICES": ""}
        for name in unknown_variables(environment):
            del environment[name]  # this process has named it already
        if self._has_own_redis:
            environment.pop("RELIBRA_REDIS_PASSWORD_FILE", None)  # it is for another Redis, for example that of Compose
        if self._verb != "planner":
            environment.pop("RELIBRA_METRICS_PORT", None)  # two services cannot listen on one port
        with ExitStack() as opened:
            log = None
            if self._log is not None:
                log = opened.enter_context(self._log.open("ab"))
            self._process = subprocess.Popen(
                tie([*command, "--ready-file", str(self._ready_file)]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self, stop: _Stop) -> dict[str, Any] | None:
        """Return the addresses of the service, or None if `stop` was set first; exit if the service fails to start."""
        while not self._ready_file.exists():
            if self._process.poll() is not None:
                where = "above" if self._log is None else f"in {self._log}"
                typer.echo(f"{self._verb} did not start, for the reason that it gave {where}; stopping", err=True)
                raise typer.Exit(2)
            if stop.wait(_POLL_INTERVAL_S):
                return None
        addresses: dict[str, Any] = json.loads(self._ready_file.read_text())
        self._options[-1] = addresses[self._verb].rpartition(":")[2]
        return addresses

    def report_exit(self) -> None:
        """Report once that the service has exited, and how to restart it."""
        status = self._process.poll()
        if status is None or self._is_reported:
            return
        self._is_reported = True
        from relibra.store.address import without_password

        command = " ".join([self._verb, "--redis-url", without_password(self._redis_url), *self._options])
        typer.echo(
            f"{self._verb} (pid {self._process.pid}) exited with status {status}; the other services keep running. "
            f"{'' if self._log is None else f'Its log is {self._log}. '}Restart it with:\n  relibra {command}",
            err=True,
        )
