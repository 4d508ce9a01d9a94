"""How long a phase computes: from its first mark to its last, without a wait in between.

On a GPU, marks are events in the stream of the phase. They are read when the step has ended, so no forward waits.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Clock(NamedTuple):
    """Takes moments, and tells the seconds between two of them."""

    now: Callable[[], Any]
    between: Callable[[Any, Any], float]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device: of the present stream of a GPU, or of the host."""
    return Clock(_event, _seconds) if device.type == "cuda" else host_clock(time.perf_counter)


def host_clock(seconds: Callable[[], float]) -> Clock:
    """Return a clock that reads `seconds`."""
    return Clock(seconds, lambda begin, end: end - begin)


class Stopwatch:
    """The time from the first to the last mark.

    Args:
        clock: takes the marks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: Any = None
        self._last: Any = None

    def mark(self) -> None:
        """Mark the present moment, in the order of the device's work."""
        self._last = self._clock.now()
        if self._first is None:
            self._first = self._last

    @property
    def elapsed_s(self) -> float:
        """The time between the marks; 0 without any. The host waits for the last one."""
        return 0.0 if self._first is None else self._clock.between(self._first, self._last)


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
