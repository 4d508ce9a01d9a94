"""What the service refused because of its settings: counted for metrics, and logged at most once a minute."""

import logging
from collections import Counter
from enum import StrEnum

from relibra.refusal_log import RefusalLog

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 60.0


class Bound(StrEnum):
    """A setting that makes the service refuse; the value is the name of the setting."""

    HOSTS = "allowed_hosts"
    CONNECTIONS = "max_connections"
    HEAD_TIMEOUT = "head_timeout_s"
    REQUESTS = "max_requests_per_viewer"
    ANSWER_TIMEOUT = "answer_timeout_s"
    VIEWERS = "max_viewers"
    VIEWERS_PER_TOKEN = "max_viewers_per_token"


class Refusals:
    """Counts the refusals of one process under each setting."""

    def __init__(self) -> None:
        self.counts: Counter[Bound] = Counter()
        self._log = RefusalLog(logger, interval_s=_LOG_INTERVAL_S)

    def count(self, bound: Bound, text: str) -> None:
        """Count a refusal; log `text`, unless a refusal under the same setting was logged within the last minute."""
        self.counts[bound] += 1
        self._log.note(bound, "", f"{text} ({bound})", logging.WARNING)
