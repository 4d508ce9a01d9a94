"""Find out what the machine has, as far as it decides which stages of the check run."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmarks.gpu.check.decisions import Facts
from benchmarks.gpu.check.stages import MODULES
from relibra.kernels.sources import FOLDER, KERNELS, headers

_VERSIONS = ("torch", "numpy", "megatron-core", "grpcio", "protobuf", "pytest", "triton", "transformer-engine")


def find(*, is_rehearsal: bool) -> Facts:
    """Return the facts of this machine, with the modules that this interpreter finds."""
    return Facts(
        python=sys.executable,
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        absent=frozenset(absent(MODULES)),
        sanitizer=shutil.which("compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin"),
        kernels=tuple(KERNELS),
        racing_kernels=with_shared_memory(),
        is_rehearsal=is_rehearsal,
    )


def with_shared_memory() -> tuple[str, ...]:
    """Return the kernels of all files in which threads share the memory of their block."""
    if any("__shared__" in text for text in headers().values()):
        return tuple(KERNELS)
    return tuple(kernel for kernel, file in KERNELS.items() if "__shared__" in (FOLDER / file).read_text())


def absent(modules: Iterable[str]) -> list[str]:
    """Return the modules that cannot be found, without importing the modules themselves."""
    return [module for module in modules if not _is_found(module)]


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def versions() -> dict[str, str]:
    """Return the versions of everything that a figure may depend on."""
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda), "system": platform.platform()}
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        major, minor = torch.cuda.get_device_capability()
        found["compute capability"] = f"{major}.{minor}"
    for package in _VERSIONS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found
