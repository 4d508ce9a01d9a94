"""Simulated devices whose streams get their work from the calls that reach a CUDA driver."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from harness.agent.simulated_memory import Device, Step, Stream
from harness.counting_driver import counting_driver
from relibra.agent.transport.cuda_stream import WORD_BYTES, CudaStream, WatchedStream, no_waits
from relibra.agent.transport.symmetric_memory import Queue, Work
from relibra.kernels import stream_work


class DrivenStream(Stream):
    """A stream that does the work that a driver was given for it."""

    def prepare(self, work: Sequence[Work]) -> Queue:
        device = self.device
        assert isinstance(device, DrivenDevice)
        driver = counting_driver()
        queue = CudaStream(driver.context, device.addresses(), device.rank, lambda: 1, device.waits).prepare(work)

        def queue_what_the_driver_got(base: int) -> None:
            driver.take_work()
            queue(base)
            for _, each in driver.take_work():
                self.queue(_step(each, device.begin))

        return queue_what_the_driver_got


class DrivenDevice(Device):
    """A device whose words are real memory."""

    stream = DrivenStream

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waits, self._memory = no_waits(), torch.zeros(len(self.words), dtype=torch.int64)
        assert self._memory.element_size() == WORD_BYTES

    def addresses(self) -> list[int]:
        """Return the address of the first word of each rank."""
        return [each.begin for each in self.node if isinstance(each, DrivenDevice)]

    def late_peers(self) -> list[int]:
        """Return the peers that the watchdog would name."""
        context, words = counting_driver().context, self._memory.tolist
        mark = WatchedStream(context, self.addresses(), self.rank, lambda: 1, self.waits, words).take_mark()
        return [] if mark is None else mark.late_peers()

    @property
    def begin(self) -> int:
        """The address of the first word."""
        return self._memory.data_ptr()


def _step(work: stream_work.Work, begin: int) -> Step:
    if isinstance(work, stream_work.Copy):
        return Step(lambda: ctypes.memmove(*work))
    word = ctypes.c_int64.from_address(work.address)
    if isinstance(work, stream_work.Write):
        return Step(lambda: setattr(word, "value", work.value))
    return Step(lambda: None, lambda: word.value >= work.value, (work.address - begin) // WORD_BYTES)
