"""`RoutingCounter`: counts sequences while other rollouts still run, so that little is left when the last one ends."""

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, replace
from typing import Any, Self

from relibra.errors import RelibraError
from relibra.routing.block_counts import BlockCounts
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing

BUFFER_SIZE_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class _Counted:
    payload: Any
    """Held, so that no other object gets its identity."""
    num_tokens: int
    size_bytes: int
    routing: Future[SequenceRouting]


class RoutingCounter:
    """Decodes and counts finished sequences in background threads of the process that will report them.

        counter = RoutingCounter(layers)
        counter.add(sample.rollout_routed_experts, len(sample.tokens))   # when a sample is finished
        batch = rank_batch(rollout_data, layers, training_step, counter)  # when the rollout ends

    An array is known by its identity: do not change it after `add`. Arrays that were not added, were copied since, or
    did not fit are decoded and counted when they are needed. Results are the same in each case.
    """

    def __init__(
        self, layers: ModelLayers, *, buffer_size_bytes: int = BUFFER_SIZE_BYTES, num_threads: int = 2
    ) -> None:
        """Prepare to count.

        Args:
            layers: the layers of the model.
            buffer_size_bytes: the most memory for sequences that were added and not used; the oldest make room.
            num_threads: the threads that count.
        """
        self._layers = layers
        self._buffer_size_bytes = buffer_size_bytes
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="relibra-count")
        self._lock = threading.Lock()
        self._counted: OrderedDict[int, _Counted] = OrderedDict()
        self._size_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, payload: Any, num_tokens: int) -> None:
        """Count a finished sequence in the background; the call returns at once.

        A malformed payload raises nothing here; `take` raises, with the payload's name.

        Args:
            payload: the routed experts of the sequence, see `sequence_routing`.
            num_tokens: the number of its tokens, prompt and response.

        Raises:
            RelibraError: the counter is closed.
        """
        size_bytes = int(getattr(payload, "nbytes", 0))
        with self._lock:
            self._remove(id(payload))
            try:
                routing = self._pool.submit(self._count, payload, num_tokens)
            except RuntimeError as error:
                raise RelibraError("the counter is closed") from error
            self._counted[id(payload)] = _Counted(payload, num_tokens, size_bytes, routing)
            self._size_bytes += size_bytes
            while self._size_bytes > self._buffer_size_bytes:
                self._remove(next(iter(self._counted)))

    def take(self, payload: Any, num_tokens: int, field: str) -> SequenceRouting:
        """Return the routing of a payload, counted if it was added before, and forget it.

        Raises:
            InvalidInput, LimitExceeded: see `sequence_routing`.
        """
        with self._lock:
            counted = self._remove(id(payload))
        if counted is not None and counted.num_tokens == num_tokens and not counted.routing.cancelled():
            try:
                return counted.routing.result()
            except RelibraError:
                pass  # decoding again raises the same error, with the name that the caller knows
        return sequence_routing(payload, self._layers, num_tokens=num_tokens, field=field)

    def wait(self) -> None:
        """Wait until everything that was added is counted."""
        with self._lock:
            routings = [each.routing for each in self._counted.values()]
        wait_for(routings)

    def close(self) -> None:
        """Stop counting and forget everything."""
        self._pool.shutdown(cancel_futures=True)
        with self._lock:
            self._counted.clear()
            self._size_bytes = 0

    def _count(self, payload: Any, num_tokens: int) -> SequenceRouting:
        routing = sequence_routing(payload, self._layers, num_tokens=num_tokens)
        return replace(routing, blocks=BlockCounts.of(routing.routed_TLK, self._layers.num_experts))

    def _remove(self, key: int) -> _Counted | None:
        counted = self._counted.pop(key, None)
        if counted is not None:
            self._size_bytes -= counted.size_bytes
            counted.routing.cancel()  # if it has not begun, counting it now would only be late
        return counted
