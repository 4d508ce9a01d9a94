"""What `pack` decides and `solve` takes over.

L layers, E experts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A schedule, and the placement it was made for."""

    schedule: Schedule
    home_LE: NDArray[np.int32]
    """Reached from the previous placement by `reorder`, which moves experts only where that gains enough."""
