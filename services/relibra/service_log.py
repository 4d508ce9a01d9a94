"""The log of services and of their worker processes: lines on standard error, as JSON with RELIBRA_LOG_FORMAT=json."""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

logger = logging.getLogger(__name__)

_FIELDS = ("job", "step", "version", "trace")


def is_json() -> bool:
    """Return whether log lines are JSON objects."""
    return os.environ.get("RELIBRA_LOG_FORMAT") == "json"


def start(level: int = logging.INFO) -> None:
    """Log records from `level` on to standard error. The main function of a process calls this, libraries never."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if is_json() else plain)
    logging.basicConfig(level=level, handlers=[handler])


def has_told(error: Exception, *, with_traceback: bool) -> bool:
    """Log why this process ends, if it logs; return whether it does."""
    if not logging.root.handlers:
        return False
    logger.error("%s: %s", type(error).__name__, error, exc_info=error if with_traceback else None)
    return True


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
