"""Kernels on a CUDA device: compile and load them once, launch them on torch's current stream by the driver's API."""

import ctypes
import warnings
from functools import cache, partial

import torch

from relibra.errors import RelibraError
from relibra.kernels import sources
from relibra.kernels.context import Context, context, current_stream
from relibra.kernels.launch import Launch

_NUM_REGISTERS = 4


class Device:
    """One device with every kernel loaded; calling it with a launch enqueues the launch on the current stream."""

    def __init__(self, of: Context) -> None:
        self._context, self._index = of, of.index
        self._functions = {kernel: ctypes.c_void_p() for kernel in sources.KERNELS}
        of.within(self._load)

    def _load(self) -> None:
        lib, check = self._context.lib, self._context.check
        major, minor = torch.cuda.get_device_capability(self._index)
        modules = {file: ctypes.c_void_p() for file in sorted(set(sources.KERNELS.values()))}
        for file, module in modules.items():
            image = sources.compile_source(file, 10 * major + minor)
            check("cuModuleLoadData", lib.cuModuleLoadData(ctypes.byref(module), image))
        for kernel, function in self._functions.items():
            name, module = ctypes.c_char_p(kernel.encode()), modules[sources.KERNELS[kernel]]
            check("cuModuleGetFunction", lib.cuModuleGetFunction(ctypes.byref(function), module, name))
            # Asking for its registers loads the kernel. If the driver loaded it at its first launch instead, that
            # launch could wait for kernels that are running, and could not be captured in a CUDA graph.
            num = ctypes.c_int()
            check("cuFuncGetAttribute", lib.cuFuncGetAttribute(ctypes.byref(num), _NUM_REGISTERS, function))

    def __call__(self, launch: Launch) -> None:
        """Enqueue a launch and return before it runs.

        Raises:
            RelibraError: the driver refused the launch, or an earlier kernel failed.
        """
        self._context.within(partial(self._launch, launch))

    def _launch(self, launch: Launch) -> None:
        stream, shared_bytes = ctypes.c_void_p(current_stream(self._index)), 0
        blocks, threads = (*launch.num_blocks, 1), (launch.num_threads, 1, 1)
        function, arguments = self._functions[launch.kernel], launch.arguments
        status = self._context.lib.cuLaunchKernel(function, *blocks, *threads, shared_bytes, stream, arguments, None)
        if status:
            self._context.check("cuLaunchKernel", status)


@cache
def device(index: int) -> Device | None:
    """Open a device; if its kernels cannot be compiled or loaded, warn once and return None."""
    try:
        return Device(context(index))
    except (RelibraError, OSError) as error:
        warnings.warn(
            f"relibra's CUDA kernels cannot be used on device {index}; the torch operations used instead give "
            f"the same results more slowly: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
