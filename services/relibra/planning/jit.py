"""`compiled`: numba's `njit` with a type, for the hot loops of planning.

Compiled functions use integers only, so that they give the same bits on every host (S8): no floats, no libm, no
parallel reductions, and a random generator of their own. They release the interpreter, so that layers are planned on
several cores by plain threads. Those that call each other live in one file, because numba's disk cache notices a
changed callee only then; `splitmix` alone is shared, a published function that never changes.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` on its first call, and keep the machine code on disk."""
    return cast(Callable[Parameters, Result], njit(cache=True, nogil=True)(function))
