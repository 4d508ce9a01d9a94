"""The CUDA driver's library, and the context of a device in which it is called."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from relibra.errors import RelibraError


@cache
def library() -> ctypes.CDLL:
    """Load the driver.

    Raises:
        OSError: there is none.
    """
    return ctypes.CDLL("libcuda.so.1")


def current_stream(index: int) -> int:
    """Return the driver's handle of torch's current stream of a device, without an object for it."""
    handle: int = torch._C._cuda_getCurrentRawStream(index)
    return handle


class Context:
    """The primary context of a device, the one that torch uses.

    Args:
        index: of the device.

    Raises:
        OSError: there is no driver.
        RelibraError: the driver refused.
    """

    def __init__(self, index: int) -> None:
        self.index, self.lib = index, library()
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", self.lib.cuDeviceGet(ctypes.byref(handle), index))
        self.check("cuDevicePrimaryCtxRetain", self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle))

    def within(self, run: Callable[[], None]) -> None:
        """Call `run` with this context current, because threads of autograd may have no current context yet."""
        current = ctypes.c_void_p()
        self.lib.cuCtxGetCurrent(ctypes.byref(current))
        if current.value == self._context.value:
            run()
            return
        self.check("cuCtxPushCurrent", self.lib.cuCtxPushCurrent_v2(self._context))
        try:
            run()
        finally:
            self.lib.cuCtxPopCurrent_v2(ctypes.byref(current))

    def check(self, call: str, status: int) -> None:
        """Raise if the driver refused a call.

        Raises:
            RelibraError: with the driver's word for `status`.
        """
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(status, ctypes.byref(text))
            raise RelibraError(f"{call} on CUDA device {self.index}: {(text.value or b'?').decode()} ({status})")


@cache
def context(index: int) -> Context:
    """Return the context of a device; see `Context`."""
    return Context(index)
