"""What the hot loops of planning are built on: a typed `njit`, threads over layers, and random numbers.

Compiled functions use integers only: no floats, no libm, no parallel reductions, and a random generator of their own.
They therefore give the same bits on every host (S8). They release the interpreter lock, so plain threads can plan
layers on several cores. Compiled functions that call each other live in one file, because numba's disk cache notices a
changed callee only then. `next_random` is the one exception: it is a published function and never changes.
"""

import _thread
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


_dispatchers: list[Any] = []


def compile_once(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` on its first call, and keep the machine code on disk."""
    dispatcher = njit(cache=True, nogil=True)(function)
    _dispatchers.append(dispatcher)
    return cast(Callable[Parameters, Result], dispatcher)


class MachineCode(NamedTuple):
    """How this process came by the machine code of its compiled functions."""

    num_loaded: int
    """How many functions it read from disk, counted once for each combination of argument types."""
    num_compiled: int
    """How many it had to compile, because the disk held no code for this CPU and these sources."""


def machine_code() -> MachineCode:
    """Return how this process came by its machine code so far."""
    stats = [counters.stats for counters in _dispatchers]
    return MachineCode(
        num_loaded=sum(sum(counters.cache_hits.values()) for counters in stats),
        num_compiled=sum(sum(counters.cache_misses.values()) for counters in stats),
    )


def for_each_layer(function: Callable[[int], Result], num_layers: int, num_threads: int) -> list[Result]:
    """Call `function` with the index of every layer, on `num_threads` threads; return the results in layer order.

    The calling thread works too, and the others only help: one that cannot start, or that dies before it takes a layer,
    leaves the layers to the rest. After the first error no further layer is begun, and the error is raised here.
    """
    work = _Work(function, num_layers)
    helpers = [_Helper() for _ in range(min(num_threads, num_layers) - 1)]
    for helper in helpers:
        # `threading.Thread.start` waits until the thread runs. A thread without memory for its first Python frame never
        # does, and the wait never ends: https://github.com/python/cpython/issues/140746
        try:
            _thread.start_new_thread(helper.run, (work,))
        except RuntimeError:  # no room for its stack
            break
    work.run()
    for helper in helpers:
        helper.wait()
    if work.error is not None:
        try:
            raise work.error
        finally:
            # The frame of this function is part of the error, which would otherwise keep itself and its arrays alive.
            del work
    return work.results


class _Work(Generic[Result]):
    """The layers that threads share. Threads keep results and the error without allocating memory."""

    def __init__(self, function: Callable[[int], Result], num_layers: int) -> None:
        self._function = function
        # Taking the next number of a range is one operation of the interpreter, so each layer is taken once.
        self._layers = iter(range(num_layers))
        self.results: list[Result] = [cast(Result, None)] * num_layers
        self.error: BaseException | None = None

    def run(self) -> None:
        """Take layers until none is left or one has failed."""
        try:
            for layer in self._layers:
                if self.error is not None:
                    break
                self.results[layer] = self._function(layer)
        except BaseException as error:
            self.error = error


class _Helper:
    """A thread that may help. All that it needs in order to end exists before it starts."""

    def __init__(self) -> None:
        self._has_begun = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    def run(self, work: _Work[Any]) -> None:
        self._has_begun = True
        try:
            work.run()
        finally:
            self._ended.release()

    def wait(self) -> None:
        """Wait for the end of a thread that has begun. One that begins later finds no layer left."""
        if self._has_begun:
            self._ended.acquire()


@compile_once
def next_random(state: NDArray[np.uint64]) -> np.uint64:
    """Advance `state`, one uint64 that starts as the seed, and return 64 random bits.

    This is splitmix64 (Steele, Lea and Flood 2014).
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))
