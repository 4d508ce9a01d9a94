"""How long devices wait for their hosts: a host queues work ahead of its device, so each of the two has a clock.

Launching takes the host's time. A device begins what was launched when it has done all before, so what a host does
while its device works costs nothing. A host that waits for its device loses its lead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Us = float | NDArray[np.floating[Any]]
"""Microseconds, of one pass or of many."""


class Stage(NamedTuple):
    """A part of a pass over a layer."""

    host_us: Us
    """What the host takes until it has launched the stage."""
    device_us: Us
    """What the device takes for it then."""
    is_awaited: bool = False
    """Whether the host waits for the device at the end of the stage."""


def idle_us(stages: Sequence[Stage]) -> Us:
    """Return for how long a device has no work in a pass over a layer, where all layers are alike.

    A stage counts as launched when all its kernels are, so devices idle rather less than this.

    Args:
        stages: in order. If the host waits anywhere, it waits at the end of the last one: begin the layer there.
    """
    host: Us = 0.0
    device: Us = 0.0
    for stage in stages:
        host = host + stage.host_us
        device = np.maximum(host, device) + stage.device_us
        if stage.is_awaited:
            host = np.maximum(host, device)
    worked = sum((stage.device_us for stage in stages), start=0.0)
    if not any(stage.is_awaited for stage in stages):  # the device's lead or the host's grows from layer to layer
        device = np.maximum(sum((stage.host_us for stage in stages), start=0.0), worked)
    return device - worked
