"""What the hot loops of planning are built on: a typed `njit`, threads over layers, and random numbers.

Compiled functions use integers only: no floats, no libm, no parallel reductions, and a random generator of their own.
They therefore give the same bits on every host (S8). They release the interpreter lock, so plain threads can plan
layers on several cores. Compiled functions that call each other live in one file, because numba's disk cache notices a
changed callee only then. `next_random` is the one exception: it is a published function and never changes.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` on its first call, and keep the machine code on disk."""
    return cast(Callable[Parameters, Result], njit(cache=True, nogil=True)(function))


def for_each_layer(function: Callable[[int], Result], num_layers: int, num_threads: int) -> list[Result]:
    """Call `function` with the index of every layer, on `num_threads` threads; return the results in layer order."""
    if num_threads == 1:
        return [function(layer) for layer in range(num_layers)]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="plan-layer") as pool:
        return list(pool.map(function, range(num_layers)))


@compiled
def next_random(state: NDArray[np.uint64]) -> np.uint64:
    """Advance `state`, one uint64 that starts as the seed, and return 64 random bits.

    This is splitmix64 (Steele, Lea and Flood 2014).
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))
