"""What orchestrators ask a planner: `/livez`, whether it must be restarted, and `/readyz`, whether to send it calls.

The event loop writes here, and threads of the metrics server answer. A planner that was stopped or that is stuck in
compiled code answers nothing at all, which orchestrators count as not alive.
"""

import time
from collections.abc import Callable

HUNG_AFTER_S = 10.0
"""How long the event loop may stand still before the planner counts as hung; no load holds it up for so long."""


class Probes:
    """Liveness and readiness of one planner."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ran_at = clock()
        self._not_ready = "Redis was not asked yet"

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._ran_at = self._clock()

    def tell_ready(self, reason: str) -> None:
        """Note that the planner is ready, or why it is not."""
        self._not_ready = reason

    def answer(self, path: str) -> tuple[bool, str] | None:
        """Return whether the planner is well and a line that says so or why not; None if `path` is no probe."""
        if path not in ("/livez", "/readyz"):
            return None
        still_s = self._clock() - self._ran_at
        if still_s > HUNG_AFTER_S:
            return False, f"the event loop has not run for {still_s:.0f} s"
        if path == "/livez":
            return True, "alive"
        return not self._not_ready, f"not ready: {self._not_ready}" if self._not_ready else "ready"
