"""Layers are planned one by one, and so on several cores."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def for_each_layer(function: Callable[[int], Result], num_layers: int, num_threads: int) -> list[Result]:
    """Call `function` with every layer, on several threads where that is asked for; results come in layer order."""
    if num_threads == 1:
        return [function(layer) for layer in range(num_layers)]
    with ThreadPoolExecutor(num_threads, thread_name_prefix="plan-layer") as pool:
        return list(pool.map(function, range(num_layers)))
