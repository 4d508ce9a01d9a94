"""Shared parts of the verbs that run services: options, logging, the ready file and stop signals."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra import service_log
from relibra.atomic_file import write_atomically
from relibra.environment import complaint, unknown_variables
from relibra.errors import InvalidInput

logger = logging.getLogger(__name__)


def _with_password(url: str | None) -> str | None:
    from relibra.store.address import with_password_of

    file = os.environ.get("RELIBRA_REDIS_PASSWORD_FILE")
    return with_password_of(Path(file), url) if url and file else url


RedisUrl = Annotated[
    str,
    typer.Option(
        envvar="RELIBRA_REDIS_URL",
        help="redis://, rediss:// or unix:// URL of the store.",
        callback=_with_password,
    ),
]
OptionalRedisUrl = Annotated[
    str | None, typer.Option(envvar="RELIBRA_REDIS_URL", help="Redis of the planners.", callback=_with_password)
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
StoreUrl = Annotated[str | None, typer.Option(help="redis://, rediss:// or unix:// URL of the store.")]
ListenHost = Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 if not given.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Extra port for /metrics, where Prometheus needs no token; none if not given."),
]
Insecure = Annotated[bool | None, typer.Option("--insecure", help="Serve other machines without authentication.")]
Plaintext = Annotated[
    bool | None,
    typer.Option("--plaintext", help="Take tokens from other machines without TLS: something else encrypts."),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        help="When calls are answered, write the addresses to this file as JSON; scripts can wait for it. "
        "The first plan also waits until the solver is warm."
    ),
]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start_logging() -> None:
    """Log to standard error, and begin with the environment variables that nothing reads."""
    service_log.take_over_stderr()
    service_log.start()
    for name, nearest in unknown_variables(os.environ).items():
        logger.warning(complaint(name, nearest))


def announce(service: str, address: str, ready_file: Path | None) -> None:
    """Print the address of the service of this process, and write its ready file."""
    if not service_log.is_json():  # such a log has the address already, and no line that is not JSON
        typer.echo(f"{service:<8} {address}")
    write_ready_file(ready_file, {service: address, "pids": {service: os.getpid()}})


def write_ready_file(path: Path | None, content: dict[str, Any]) -> None:
    """Write `content` as JSON to `path`, if there is a path; a reader never sees half a file.

    Raises:
        InvalidInput: the file cannot be written.
    """
    if path is None:
        return
    try:
        write_atomically(path, json.dumps(content).encode())
    except OSError as error:
        raise InvalidInput.of("ready file", expected="a path to write to", got=error) from error


def stop_requested() -> asyncio.Event:
    """Return an event of the running loop that is set when the process is asked to stop."""
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
