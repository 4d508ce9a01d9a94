"""A CUDA driver that counts calls and keeps what streams were given to do, for machines without a GPU.

The agent calls it as it calls the real one, through ctypes, so its time on the host is real but for the driver's part.
"""

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch

from relibra.errors import Unsupported
from relibra.kernels import context, driver, sources
from relibra.kernels.stream_work import Copy, Wait, Work, Write


class _Work(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("stream", "kind", "address", "value", "size_bytes"))


class StubDriver:
    """The driver, and the context of its only device."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(str(_compiled()))
        with mock.patch.object(context, "library", return_value=self._lib):
            self.context = context.Context(0)

    def num_calls(self) -> int:
        """Return how many launches, copies, batches and events were queued so far."""
        return ctypes.c_ulonglong.in_dll(self._lib, "stub_num_calls").value

    def num_launches(self) -> int:
        """Return how many kernels were launched so far."""
        return ctypes.c_ulonglong.in_dll(self._lib, "stub_num_launches").value

    def take_work(self) -> list[tuple[int, Work]]:
        """Return the streams and their work since the last call, in order; at most 65536 pieces."""
        num = ctypes.c_ulonglong.in_dll(self._lib, "stub_num_work")
        kept = (_Work * num.value).in_dll(self._lib, "stub_work")
        num.value = 0
        return [(each.stream, _as_work(each)) for each in kept]

    @contextmanager
    def loaded(self) -> Iterator[driver.Device]:
        """Let the kernels of relibra be launched by this driver in the body. They are not compiled."""
        image = mock.patch.object(sources, "compile_source", return_value=b"")
        capability = mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0))
        with image, capability:
            device = driver.Device(self.context)
        with mock.patch.object(driver, "current_stream", _one):
            yield device


def _one(_: int) -> int:
    return 1


def _as_work(each: _Work) -> Work:
    if each.kind == 2:
        return Copy(each.address, each.value, each.size_bytes)
    return (Wait, Write)[each.kind](each.address, each.value)


@cache
def _compiled() -> Path:
    """Compile the stub.

    Raises:
        Unsupported: there is no C compiler or no cuda.h.
    """
    compiler, include = shutil.which("gcc"), _include()
    if compiler is None or include is None:
        raise Unsupported("the driver that counts calls needs gcc and cuda.h (pip: nvidia-cuda-runtime)")
    library = Path(tempfile.mkdtemp(prefix="relibra-driver-")) / "libcuda.so"
    source = Path(__file__).with_suffix(".c")
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-I", str(include)]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    return library


def _include() -> Path | None:
    with suppress(ModuleNotFoundError):
        spec = find_spec("nvidia.cu13")
        for folder in (spec and spec.submodule_search_locations) or ():
            if (Path(folder) / "include" / "cuda.h").exists():
                return Path(folder) / "include"
    found = Path("/usr/local/cuda/include")
    return found if (found / "cuda.h").exists() else None
