"""The callers that make the host wait for a CUDA device."""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch


@contextmanager
def noting_waits(noted: Counter[str]) -> Iterator[None]:
    """Count by place in the source how often the host waits for the device.

    Torch names most waits, but neither those for an event nor those for everything.
    """

    def note(message: Warning | str, *_: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            noted[_place()] += 1

    def noting(wait: Callable[..., None]) -> Callable[..., None]:
        def waits(*arguments: Any) -> None:
            noted[_place()] += 1
            wait(*arguments)

        return waits

    event = torch.cuda.Event
    with (
        warnings.catch_warnings(),
        mock.patch.object(event, "synchronize", noting(event.synchronize)),
        mock.patch.object(torch.cuda, "synchronize", noting(torch.cuda.synchronize)),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _place() -> str:
    """Return the innermost caller in relibra, megatron or the harness, as `module:line function`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in ("relibra", "megatron", "harness") and module != __name__:
            return f"{module}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"
