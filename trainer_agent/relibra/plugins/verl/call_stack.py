"""The objects that verl is building when it imports `external_lib`; verl does not pass them to it."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any


def objects_on_the_stack() -> Iterator[Any]:
    """Yield the `self` of every caller that has one, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if (found := frame.f_locals.get("self")) is not None:
            yield found
        frame = frame.f_back
