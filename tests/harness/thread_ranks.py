"""Ranks as threads of the test's process, for code that only gathers and broadcasts small objects."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadRanks:
    """Some ranks, and the functions of torch.distributed that they call. A call that one of them misses raises."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks, self._own = num_ranks, threading.local()
        self._barrier = threading.Barrier(num_ranks, timeout=30)
        self._told: list[Any] = [None] * num_ranks
        self._pool = ThreadPoolExecutor(num_ranks)

    def run(self, on_rank: Callable[[int], T]) -> list[T]:
        """Return the results of all ranks, or raise the error of the first that raised."""

        def run(rank: int) -> T:
            self._own.rank = rank
            return on_rank(rank)

        return list(self._pool.map(run, range(self._num_ranks)))

    def get_rank(self) -> int:
        return int(self._own.rank)

    def get_world_size(self) -> int:
        return self._num_ranks

    def all_gather_object(self, told: list[Any], mine: Any) -> None:
        self._told[self.get_rank()] = mine
        self._barrier.wait()
        told[:] = self._told
        self._barrier.wait()

    def broadcast_object_list(self, told: list[Any], src: int) -> None:
        everyone = [None] * self._num_ranks
        self.all_gather_object(everyone, list(told))
        told[:] = everyone[src]
