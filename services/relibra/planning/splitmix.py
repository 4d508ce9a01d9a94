"""Random numbers of compiled searches: splitmix64 (Steele, Lea and Flood 2014), the same bits on every host (S8)."""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled


@compiled
def next_random(state: NDArray[np.uint64]) -> np.uint64:
    """Advance `state`, one uint64 that starts as the seed, and return 64 random bits."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))
