"""The log of services and of their worker processes: lines on standard error, as JSON with RELIBRA_LOG_FORMAT=json."""

import atexit
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

_FIELDS = ("job", "step", "version")


class _Unexpected(logging.Handler):
    """Counts the errors that nobody expected, which alone come with a traceback."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += bool(record.exc_info)


unexpected = _Unexpected()
"""Those of this process, since `start`."""


def is_json() -> bool:
    """Return whether log lines are JSON objects."""
    return os.environ.get("RELIBRA_LOG_FORMAT") == "json"


def start(level: int = logging.INFO) -> None:
    """Log records from `level` on to standard error. The main function of a process calls this, libraries never."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if is_json() else plain)
    logging.basicConfig(level=level, handlers=[handler, unexpected])


def has_told(error: Exception, *, with_traceback: bool) -> bool:
    """Log why this process ends, if it logs; return whether it does."""
    if not logging.root.handlers:
        return False
    logger.error("%s: %s", type(error).__name__, error, exc_info=error if with_traceback else None)
    return True


def take_over_stderr() -> None:
    """If the log is JSON, make it so all that this process and its children write to standard error.

    gRPC's core, for example, writes lines of text. A child process reads them, so that the last words of a process that
    dies are in the log too.
    """
    if not is_json():
        return
    sys.stderr.flush()
    reader, writer = os.pipe()
    # After it this process writes to standard error itself again. No line of a program ends like this by accident.
    end = b"\0" + os.urandom(16).hex().encode() + b"\n"
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        _forward(reader, end)
    os.close(reader)
    stderr = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    atexit.register(_give_back, stderr, pid, end)


def _give_back(stderr: int, pid: int, end: bytes) -> None:
    sys.stderr.flush()
    os.write(2, end)
    os.dup2(stderr, 2)
    # Children may still have the pipe, and the parent of this process waits to read all of its log.
    os.waitpid(pid, 0)


def _forward(reader: int, end: bytes) -> NoReturn:
    """Write each line to standard error as JSON, until `end` or until all who log have ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        with open(reader, "rb") as lines, open(2, "wb", closefd=False) as stderr:
            for line in lines:
                if text := line.removesuffix(end):
                    stderr.write(_as_json(text))
                    stderr.flush()
                if text != line:
                    break
    finally:
        os._exit(0)  # the rest of the program belongs to the parent


def _as_json(line: bytes) -> bytes:
    try:
        if isinstance(json.loads(line), dict):
            return line
    except ValueError:
        pass
    record = {
        "time": datetime.now(UTC).isoformat(),
        "level": "WARNING",
        "logger": "stderr",
        "message": line.decode(errors="replace").rstrip("\n"),
    }
    return json.dumps(record).encode() + b"\n"


class _JsonFormatter(logging.Formatter):
    """Formats each record as a JSON object on one line, with job, step and version if the record has them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if hasattr(record, "epoch"):
            line["epoch"] = f"{record.epoch:016x}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
