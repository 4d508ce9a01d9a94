"""Kernels on a CUDA device: compile and load them once, launch them on torch's current stream by the driver's API."""

import ctypes
import warnings
from functools import cache

import torch

from relibra.errors import RelibraError
from relibra.kernels import sources
from relibra.kernels.launch import Launch

_NUM_REGISTERS = 4


class Device:
    """One device with every kernel loaded; calling it with a launch enqueues the launch on the current stream.

    Each call makes the device's primary context current, the one that torch uses, because autograd's threads may have
    no current context.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._lib = ctypes.CDLL("libcuda.so.1")
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        major, minor = torch.cuda.get_device_capability(index)
        modules = {file: ctypes.c_void_p() for file in sorted(set(sources.KERNELS.values()))}
        self._functions = {kernel: ctypes.c_void_p() for kernel in sources.KERNELS}
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            for file, module in modules.items():
                image = sources.compile_source(file, 10 * major + minor)
                self._call("cuModuleLoadData", ctypes.byref(module), image)
            for kernel, function in self._functions.items():
                name = ctypes.c_char_p(kernel.encode())
                self._call("cuModuleGetFunction", ctypes.byref(function), modules[sources.KERNELS[kernel]], name)
                # Asking for its registers loads the kernel. If the driver loaded it at its first launch instead, that
                # launch could wait for kernels that are running, and could not be captured in a CUDA graph.
                self._call("cuFuncGetAttribute", ctypes.byref(ctypes.c_int()), _NUM_REGISTERS, function)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def __call__(self, launch: Launch) -> None:
        """Enqueue a launch and return before it runs.

        Raises:
            RelibraError: the driver refused the launch, or an earlier kernel failed.
        """
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.index).cuda_stream)
        blocks, threads, shared_bytes = (*launch.num_blocks, 1), (launch.num_threads, 1, 1), 0
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            function = self._functions[launch.kernel]
            self._call("cuLaunchKernel", function, *blocks, *threads, shared_bytes, stream, launch.arguments, None)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, function: str, *args: object) -> None:
        status = getattr(self._lib, function)(*args)
        if status:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(status, ctypes.byref(text))
            raise RelibraError(f"{function} on CUDA device {self.index}: {(text.value or b'?').decode()} ({status})")


@cache
def device(index: int) -> Device | None:
    """Open a device; if its kernels cannot be compiled or loaded, warn once and return None."""
    try:
        return Device(index)
    except (RelibraError, OSError) as error:
        warnings.warn(
            f"relibra's CUDA kernels cannot be used on device {index}; the torch operations used instead give "
            f"the same results more slowly: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
