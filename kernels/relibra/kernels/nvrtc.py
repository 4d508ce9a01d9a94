"""CUDA C++ to machine code at run time, by NVRTC through ctypes.

Every CUDA build of torch comes with NVRTC, as a wheel or as part of the toolkit, and the driver needs no development
files. Thanks to ctypes, the trainer's environment needs no compiler, no headers and no further package, and one wheel
of relibra serves CUDA 12 and 13. `cuda-core` would replace these lines, but it needs a `cuda-bindings` of torch's CUDA
version, which only recent versions of torch bring along, takes 130 MB, and cannot pass a table of tensors by value.
"""

import ctypes
import importlib.util
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from relibra.errors import Unsupported

FLAGS = ("--std=c++17",)
"""Options of every compilation, in addition to the architecture."""


class Nvrtc:
    """One loaded NVRTC library.

    Attributes:
        version: (major, minor).
    """

    def __init__(self, path: str) -> None:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if os.sep in path else []:
            # NVRTC opens this library by its bare name. In a wheel's folder that only works if it is loaded already.
            ctypes.CDLL(str(builtins))
        self._lib = ctypes.CDLL(path)
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def target(self, capability: int) -> str:
        """Return the compilation target for a device of this compute capability, such as 90.

        A device newer than this NVRTC gets portable code for the newest architecture that NVRTC knows; the driver
        compiles that code for the device.

        Raises:
            Unsupported: NVRTC knows no architecture that runs on the device.
        """
        num = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(num))
        known = (ctypes.c_int * num.value)()
        self._call("nvrtcGetSupportedArchs", known)
        if capability in known:
            return f"sm_{capability}"
        older = [architecture for architecture in known if architecture < capability]
        if not older:
            raise Unsupported(f"NVRTC {self.version} compiles for {list(known)}, none of which runs on sm_{capability}")
        return f"compute_{max(older)}"

    def compile(
        self, name: str, source: str, headers: Mapping[str, str], target: str, flags: Sequence[str] = FLAGS
    ) -> tuple[bytes, str]:
        """Compile one file.

        Args:
            name: the file's name, for messages.
            source: the file's text.
            headers: the text of every file that `source` includes, by name.
            target: `sm_NN` for machine code, `compute_NN` for portable code.
            flags: further options.

        Returns:
            The code that the driver loads, and the compiler's log.

        Raises:
            Unsupported: the source does not compile; the message holds the log.
        """
        program = ctypes.c_void_p()
        includes = [(ctypes.c_char_p * len(headers))(*map(str.encode, texts)) for texts in (headers.values(), headers)]
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), *includes)
        try:
            options = [f"--gpu-architecture={target}", *flags]
            status = self._lib.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options))
            )
            log = self._read("nvrtcGetProgramLog", program).rstrip(b"\0").decode()
            if status:
                raise Unsupported(f"NVRTC {self.version} did not compile {name} for {target}:\n{log}")
            return self._read("nvrtcGetCUBIN" if target.startswith("sm_") else "nvrtcGetPTX", program), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _read(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(function, program, data)
        return data.raw

    def _call(self, function: str, *args: object) -> None:
        status = getattr(self._lib, function)(*args)
        if status:
            raise Unsupported(f"{function}: {self._lib.nvrtcGetErrorString(status).decode()}")


@cache
def load() -> Nvrtc:
    """Load the NVRTC that fits torch's CUDA version; for a torch without CUDA, load the newest NVRTC found.

    Raises:
        Unsupported: no NVRTC was found; the message names the places that were searched.
    """
    majors = [torch.version.cuda.split(".")[0]] if torch.version.cuda else ["13", "12"]
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [] if spec else [])]
    tried = []
    for major in majors:
        folders = [root / wheel / "lib" for root in roots for wheel in (f"cu{major}", "cuda_nvrtc")]
        folders += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"]
        name = f"libnvrtc.so.{major}"
        for path in (*(str(folder / name) for folder in folders), name):
            tried.append(path)
            try:
                return Nvrtc(path)
            except OSError:
                continue
    raise Unsupported(f"found no NVRTC, which comes with CUDA builds of torch; tried {', '.join(tried)}")
