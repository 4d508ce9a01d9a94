"""Devices of all ranks in one thread. Whatever order of work streams and signals allow can be chosen, step by step.

Unlike on a CPU, the current stream is a queue, too: the program of a rank runs ahead of everything that it queues.
"""

from collections import deque
from collections.abc import Callable, Sequence
from ctypes import memmove

import torch
from torch import Tensor

from relibra.agent.transport.symmetric_memory import Push, Put, Queue, Work


class Step:
    """Queued work: `run` does it, once `is_ready` returns true."""

    def __init__(
        self, run: Callable[[], object], is_ready: Callable[[], bool] = lambda: True, word: int | None = None
    ) -> None:
        self.run, self.is_ready, self.word = run, is_ready, word
        self.is_done = False


class Stream:
    """A stream, whose steps lie in a queue of the device."""

    def __init__(self, device: "Device", steps: deque[Step]) -> None:
        self.device, self._steps = device, steps

    def queue(self, step: Step) -> Step:
        self._steps.append(step)
        return step

    def prepare(self, work: Sequence[Work]) -> Queue:
        return lambda base: [self.queue(self._step(each, base)) for each in work]

    def _step(self, work: Work, base: int) -> Step:
        device = self.device
        if isinstance(work, Push):
            return Step(lambda: memmove(*work))
        value = work.value + base
        if isinstance(work, Put):
            return Step(lambda: device.node[work.peer].words.__setitem__(work.word, value))
        return Step(lambda: None, lambda: device.words[work.word] >= value, work.word)


class Device:
    """One rank's `SymmetricMemory`.

    Args:
        rank: of this device.
        node: gets the devices of all ranks.
        blocks: the memory of all ranks, which they allocate once.
        num_queues: the hardware queues, as CUDA_DEVICE_MAX_CONNECTIONS says: streams that share one work in the order
            in which the program queues.
    """

    stream = Stream

    def __init__(self, rank: int, node: list["Device"], blocks: Sequence[Tensor], num_queues: int) -> None:
        self.rank, self.num_ranks, self.node = rank, len(blocks), node
        self.words, self._blocks = [0] * (2 * len(blocks)), blocks
        self.queues = [deque[Step]() for _ in range(num_queues)]
        self._num_streams = 0
        self.current = self.side_stream()

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        assert all(len(block) == size_bytes for block in self._blocks)
        return self._blocks

    def current_stream(self) -> Stream:
        return self.current

    def side_stream(self) -> Stream:
        self._num_streams += 1
        return self.stream(self, self.queues[(self._num_streams - 1) % len(self.queues)])


def simulated_node(num_ranks: int, size_bytes: int, num_queues: int = 8, kind: type[Device] = Device) -> list[Device]:
    """Return the devices of a node, of one kind, with memory of this size on each."""
    node, blocks = list[Device](), [torch.zeros(size_bytes, dtype=torch.uint8) for _ in range(num_ranks)]
    node += [kind(rank, node, blocks, num_queues) for rank in range(num_ranks)]
    return node


def run_all(node: Sequence[Device], choose: Callable[[int], int]) -> dict[int, set[int]]:
    """Do one queued step after the other until none is ready; return the peers that each stuck rank waits for.

    Args:
        node: the devices.
        choose: given the number of queues whose first step is ready, returns the index of one of them.
    """
    while True:
        ready = [queue for device in node for queue in device.queues if queue and queue[0].is_ready()]
        if not ready:
            break
        step = ready[choose(len(ready))].popleft()
        step.run()
        step.is_done = True
    return {
        device.rank: {
            queue[0].word % device.num_ranks for queue in device.queues if queue and queue[0].word is not None
        }
        - {device.rank}
        for device in node
        if any(device.queues)
    }
