"""What a host does between points of a pass over a layer, by stage: its time, operations or calls of a driver."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

WARM_UPS = 10
"""The first turns of a measurement, which are slower and do not count."""


class Laps:
    """Sums up by stage what a gauge rises by.

    Args:
        gauge: a reading that only rises.
    """

    def __init__(self, gauge: Callable[[], float] = lambda: 0.0) -> None:
        self._gauge, self._last = gauge, gauge()
        self.by_stage: dict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Leave out what came before."""
        self._last = self._gauge()

    def end(self, stage: str) -> None:
        """Count what came since the last point for `stage`."""
        now = self._gauge()
        self.by_stage[stage] += now - self._last
        self._last = self._gauge()


class Operations(TorchDispatchMode):
    """Counts operations but for views, which launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        is_view = getattr(operation, "is_view", False)
        self.num += not is_view and not any(name in str(operation) for name in ("empty", "detach"))
        return result


def small_operation_us() -> float:
    """Return the tenth percentile of the time of `torch.empty(1).add_(1)`: how fast this core is."""
    times_us = []
    for _ in range(200):
        began_s = time.thread_time()
        for _ in range(20):
            torch.empty(1).add_(1)
        times_us.append((time.thread_time() - began_s) / 20 * 1e6)
    return float(np.percentile(times_us, 10))
