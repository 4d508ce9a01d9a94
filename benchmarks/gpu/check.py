"""Run everything that needs a CUDA device: the tests, the benchmark, and the kernels under compute-sanitizer.

    make gpu-check

When a part fails or takes too long, the check reports it and runs the next one. The exit status is 1 if any part
failed. The check downloads nothing: torch with CUDA, pytest, pytest-timeout and hypothesis must be installed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from relibra.kernels.sources import KERNELS

_ROOT = Path(__file__).parents[2]
_TESTS = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"]
_SMALL = "test_kernels_on_cuda and not graph and not current_stream and not every_run"


def _sanitizer(program: str, tool: str) -> list[str]:
    only = [f"--kernel-name=kernel_name={kernel}" for kernel in KERNELS]
    options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", *only]
    return [program, *options, *_TESTS, "-q", "-x", "-k", _SMALL, "-o", "timeout=0"]


def _run(name: str, command: list[str], limit_s: float) -> str:
    """Run one part; return how it ended."""
    print(f"\n===== {name}: {' '.join(command)}", flush=True)
    began_s = time.monotonic()
    process = subprocess.Popen(command, cwd=_ROOT, start_new_session=True)
    try:
        status = process.wait(limit_s)
        ended = "passed" if status == 0 else f"FAILED with status {status}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        ended = f"FAILED: not finished after {limit_s:.0f} s"
    return f"{ended} ({time.monotonic() - began_s:.0f} s)"


def main() -> int:
    """Run all parts, for at most 470 s together; return the exit status."""
    if not torch.cuda.is_available():
        print(f"gpu-check: expected a CUDA device, got torch {torch.__version__}, which sees none", file=sys.stderr)
        return 1
    parts = {
        "tests": (_TESTS, 130.0),
        "benchmark": ([sys.executable, "-m", "benchmarks.gpu"], 160.0),
    }
    sanitizer = shutil.which("compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    if sanitizer is not None:
        parts["memcheck"] = (_sanitizer(sanitizer, "memcheck"), 100.0)
        parts["racecheck"] = (_sanitizer(sanitizer, "racecheck"), 80.0)
    results = {name: _run(name, command, limit_s) for name, (command, limit_s) in parts.items()}
    if sanitizer is None:
        results["sanitizer"] = "not run: compute-sanitizer is not installed"
    print("\n=====", *(f"{name:12} {ended}" for name, ended in results.items()), sep="\n")
    return int(any(ended.startswith("FAILED") for ended in results.values()))


if __name__ == "__main__":
    sys.exit(main())
