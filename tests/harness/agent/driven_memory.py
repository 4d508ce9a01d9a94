"""Simulated devices whose streams get their work from the calls that reach a CUDA driver."""

import ctypes
from collections.abc import Sequence

import torch

from harness.agent.simulated_memory import Device, Step, Stream
from harness.counting_driver import counting_driver
from relibra.agent.transport.cuda_stream import WORD_BYTES, CudaStream
from relibra.agent.transport.symmetric_memory import Queue, Work
from relibra.kernels import stream_work


class DrivenStream(Stream):
    """A stream that does the work that a driver was given for it."""

    def prepare(self, work: Sequence[Work]) -> Queue:
        device = self.device
        assert isinstance(device, DrivenDevice)
        addresses = [each.begin for each in device.node if isinstance(each, DrivenDevice)]
        driver = counting_driver()
        queue = CudaStream(driver.context, addresses, device.rank, lambda: 1).prepare(work)

        def queue_what_the_driver_got(base: int) -> None:
            driver.take_work()
            queue(base)
            for _, each in driver.take_work():
                self.queue(_step(each))

        return queue_what_the_driver_got


class DrivenDevice(Device):
    """A device whose words are real memory."""

    stream = DrivenStream

    @property
    def begin(self) -> int:
        """The address of the first word."""
        if not hasattr(self, "_memory"):
            self._memory = torch.zeros(len(self.words), dtype=torch.int64)
            assert self._memory.element_size() == WORD_BYTES
        return self._memory.data_ptr()


def _step(work: stream_work.Work) -> Step:
    if isinstance(work, stream_work.Copy):
        return Step(lambda: ctypes.memmove(*work))
    word = ctypes.c_int64.from_address(work.address)
    if isinstance(work, stream_work.Write):
        return Step(lambda: setattr(word, "value", work.value))
    return Step(lambda: None, lambda: word.value >= work.value)
