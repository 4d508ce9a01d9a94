"""Devices of all ranks in one thread. Whatever order of work streams and signals allow can be chosen, step by step.

Unlike on a CPU, the current stream is a queue, too: the program of a rank runs ahead of everything that it queues.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Step:
    """Queued work: `run` does it, once `is_ready` returns true."""

    def __init__(
        self, run: Callable[[], object], is_ready: Callable[[], bool] = lambda: True, word: int | None = None
    ) -> None:
        self.run, self.is_ready, self.word = run, is_ready, word
        self.is_done = False


class Stream:
    """A stream, whose steps lie in a queue of the device. A mark is a step that does nothing."""

    def __init__(self, device: "Device", steps: deque[Step]) -> None:
        self.device, self._steps = device, steps

    def queue(self, step: Step) -> Step:
        self._steps.append(step)
        return step

    def follow(self) -> None:
        before = self.device.current.queue(Step(lambda: None))
        self.queue(Step(lambda: None, lambda: before.is_done))

    def copy(self, into: Tensor, source: Tensor) -> None:
        self.queue(Step(lambda: into.copy_(source)))

    def put_signal(self, peer: int, word: int, value: int) -> None:
        words = self.device.node[peer].words
        self.queue(Step(lambda: words.__setitem__(word, value)))

    def wait_signal(self, word: int, value: int) -> None:
        device = self.device
        half = device.modulus // 2
        self.queue(Step(lambda: None, lambda: (device.words[word] - value) % device.modulus < half, word))

    def mark(self) -> "Mark":
        return Mark(self.queue(Step(lambda: None)), self.device)


class Mark:
    """See `relibra.agent.transport.symmetric_memory.Mark`."""

    def __init__(self, step: Step, device: "Device") -> None:
        self._step, self._device = step, device

    def wait(self) -> None:
        self._device.current.queue(Step(lambda: None, lambda: self._step.is_done))


class Device:
    """One rank's `SymmetricMemory`.

    Args:
        rank: of this device.
        node: gets the devices of all ranks.
        blocks: the memory of all ranks, which they allocate once.
        modulus: at which words begin anew.
        num_queues: the hardware queues, as CUDA_DEVICE_MAX_CONNECTIONS says: streams that share one work in the order
            in which the program queues.
    """

    def __init__(
        self, rank: int, node: list["Device"], blocks: Sequence[Tensor], modulus: int, num_queues: int
    ) -> None:
        self.rank, self.num_ranks, self.node, self.modulus = rank, len(blocks), node, modulus
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
        return Stream(self, self.queues[(self._num_streams - 1) % len(self.queues)])


def simulated_node(num_ranks: int, size_bytes: int, modulus: int, num_queues: int = 8) -> list[Device]:
    """Return the devices of a node, with memory of this size on each."""
    node, blocks = list[Device](), [torch.zeros(size_bytes, dtype=torch.uint8) for _ in range(num_ranks)]
    node += [Device(rank, node, blocks, modulus, num_queues) for rank in range(num_ranks)]
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
        for device in node
        if any(device.queues)
    }
