"""Checks that GPUs, driver, torch and the kernel compiler fit together."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning
from relibra.errors import Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCuda:
    """What torch reports about CUDA."""

    version: str
    cuda: str | None
    """The CUDA version that torch was built for; None for a CPU build."""
    is_available: bool
    capabilities: Sequence[int] = ()
    """The compute capabilities of the visible devices, such as 90."""


def examine() -> list[Finding]:
    """Query the driver, torch and NVRTC."""
    gpus, torch_cuda = run_nvidia_smi("--query-gpu=name,driver_version", "--format=csv,noheader"), _torch()
    findings = judge(None if gpus is None else gpus.splitlines(), torch_cuda)
    if torch_cuda is not None and torch_cuda.is_available:
        findings.append(_nvrtc(torch_cuda.capabilities))
    return findings


def judge(gpus: Sequence[str] | None, torch_cuda: TorchCuda | None) -> list[Finding]:
    """Return the findings about driver and torch.

    Args:
        gpus: lines of `name, driver version`; None if there is no driver.
        torch_cuda: None if torch is not installed.
    """
    if not gpus:
        if torch_cuda is not None and torch_cuda.cuda is not None:
            reason = f"torch {torch_cuda.version} is built for CUDA {torch_cuda.cuda}, but no driver responds"
            return [warning("gpu", reason, "on a trainer, install the NVIDIA driver or give the container its GPUs")]
        return [skipped("gpu", "this machine has no NVIDIA GPU; only trainers need one")]
    name, _, driver = gpus[0].partition(", ")
    findings = [ok("gpu", f"{len(gpus)} x {name}, driver {driver}")]
    if torch_cuda is None:
        return [*findings, skipped("gpu: torch", "not installed; only trainers need it")]
    if torch_cuda.cuda is None:
        fix = "install the CUDA build: pip install --force-reinstall torch"
        return [*findings, failed("gpu: torch", f"torch {torch_cuda.version} is built without CUDA", fix)]
    if not torch_cuda.is_available:
        reason = f"torch {torch_cuda.version} with CUDA {torch_cuda.cuda} cannot use the GPUs on driver {driver}"
        return [*findings, failed("gpu: torch", reason, "update the driver, or install torch for an older CUDA")]
    return [*findings, ok("gpu: torch", f"torch {torch_cuda.version}, CUDA {torch_cuda.cuda}")]


def run_nvidia_smi(*arguments: str) -> str | None:
    """Return the output of `nvidia-smi`, or None if it is missing or fails."""
    try:
        ended = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()


def _torch() -> TorchCuda | None:
    try:
        import torch
    except ImportError:
        return None
    is_available = torch.cuda.is_available()
    num_devices = torch.cuda.device_count() if is_available else 0
    capabilities = {torch.cuda.get_device_capability(device) for device in range(num_devices)}
    return TorchCuda(
        version=torch.__version__,
        cuda=torch.version.cuda,
        is_available=is_available,
        capabilities=[10 * major + minor for major, minor in sorted(capabilities)],
    )


def _nvrtc(capabilities: Sequence[int]) -> Finding:
    from relibra.kernels import nvrtc

    try:
        compiler = nvrtc.load()
        targets = [compiler.target(capability) for capability in capabilities]
    except Unsupported as error:
        return failed("gpu: NVRTC", str(error), "install the CUDA build of torch, which includes NVRTC")
    version = ".".join(map(str, compiler.version))
    return ok("gpu: NVRTC", f"version {version} compiles kernels for {', '.join(targets)}")
