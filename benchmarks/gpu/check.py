"""Run the stages of the check, one after the other, and say what they found.

    make gpu-check                                    # or `run.sh` in the folder that `make gpu-bundle` builds
    python -m benchmarks.gpu [--stages kernels,ranks] [--budget-s 540] [--wheels FOLDER] [--rehearse]

Every stage is a process with a log and a time limit of its own; a stage that fails or hangs does not stop the next one.
After each stage the summary is written anew, so a check that is cut off leaves what it has found. All logs and figures
lie in `build/gpu-check`. If the variable OUT names a folder, the check puts the summary and an archive of everything
there: two files, as some machines send few back.

The exit status is 1 if a stage failed, and 2 if the arguments or the machine do not allow a check.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.bundle import unpack_missing
from benchmarks.gpu.stages import SANITIZER, STAGES, Stage, Verdict, chosen, refusal, verdict
from relibra.atomic_file import write_atomically

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "build" / "gpu-check"
"""Where all logs and figures of the last check are."""
_SOURCES = ("services", "trainer_agent", "kernels", "proto", "tests", ".")
_VERSIONS = ("torch", "numpy", "megatron-core", "grpcio", "protobuf", "pytest", "triton", "transformer-engine")
_LOG_CHARACTERS = 1500
_MARK = "RELIBRA_GPU_CHECK"
"""The environment variable that all processes of a check carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one stage ended."""

    name: str
    verdict: Verdict
    reason: str
    """Why it failed or did not run; the numbers of tests if it passed."""
    took_s: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the stage measured; `says` has it in lines for people."""
    log_end: str = ""
    """The end of the log of a stage that failed."""


class Check:
    """A check in progress.

    Args:
        device: "cuda", or "cpu" for a rehearsal.
        folder: where all logs and figures are written.
        out: a folder for the two files that are sent back, if there is one.
        path: folders to import from, before those of the repository.
        budget_s: the time of all stages together.
    """

    def __init__(self, device: str, folder: Path, out: Path | None, path: Sequence[Path], budget_s: float) -> None:
        self._device, self._folder, self._out = device, folder, out
        self._mark = uuid.uuid4().hex
        paths = [*path, *(_ROOT / each for each in _SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {
            "PATH": os.environ["PATH"] + ":/usr/local/cuda/bin",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
            _MARK: self._mark,
        }
        self._absent = {each for stage in STAGES for each in stage.needs if not self._has(each)}
        self._way: str | None = None
        self._ends_s = time.monotonic() + budget_s
        self.results: list[Result] = []

    def run(self, stages: Sequence[Stage]) -> None:
        """Run the stages in turn; write the summary after each one."""
        for stage in stages:
            left_s = self._ends_s - time.monotonic()
            why_not = refusal(stage, self._device, self._absent, self._way, left_s)
            if why_not is None:
                result = self._ended(stage, min(stage.limit_s, left_s))
            else:
                result = Result(name=stage.name, verdict=Verdict.NOT_RUN, reason=why_not)
            if stage.name == "probe":
                self._way = result.figures.get("way")
            self.results.append(result)
            print(f"{stage.name}: {result.verdict} {result.reason} ({result.took_s:.0f} s)", flush=True)
            self._write()

    def text(self) -> str:
        """Return the summary for people: the machine, a line for each stage, figures, and ends of logs."""
        lines = [", ".join(f"{name} {found}" for name, found in versions().items()), ""]
        lines += [f"{e.name:10} {e.verdict:8} {e.took_s:5.0f} s  {e.reason}".rstrip() for e in self.results]
        for each in self.results:
            if "says" in each.figures:
                lines += ["", f"{each.name}:", *each.figures["says"]]
        for each in self.results:
            if each.log_end:
                lines += ["", f"===== end of the log of {each.name}", each.log_end]
        return "\n".join(lines)

    def _has(self, need: str) -> bool:
        if need == SANITIZER:
            return shutil.which(need, path=self._environment["PATH"]) is not None
        try:
            return importlib.util.find_spec(need) is not None
        except ModuleNotFoundError:  # the package around it is missing
            return False

    def _ended(self, stage: Stage, limit_s: float) -> Result:
        log, figures = (self._folder / f"{stage.name}.{suffix}" for suffix in ("log", "json"))
        filled = {"python": sys.executable, "device": self._device, "way": self._way, "figures": figures}
        command = [each.format(**filled) for each in stage.command]
        environment = self._environment | dict(stage.variables)
        began_s = time.monotonic()
        with log.open("wb") as file:
            status = _status(command, limit_s, environment, file.fileno(), self._mark)
        printed = log.read_text(errors="replace")
        ended, reason = verdict(stage, status, limit_s, printed)
        return Result(
            name=stage.name,
            verdict=ended,
            reason=reason,
            took_s=time.monotonic() - began_s,
            figures=json.loads(figures.read_text()) if figures.is_file() else {},
            log_end=printed[-_LOG_CHARACTERS:] if ended is Verdict.FAILED else "",
        )

    def _write(self) -> None:
        document = {"versions": versions(), "stages": [asdict(each) for each in self.results]}
        write_atomically(self._folder / "summary.json", json.dumps(document, indent=1).encode())
        write_atomically(self._folder / "summary.txt", self.text().encode())
        if self._out is not None:
            shutil.copy(self._folder / "summary.txt", self._out)
            with tarfile.open(self._out / "gpu-check.tar.gz", "w:gz") as archive:
                for file in sorted(self._folder.glob("*.*")):
                    archive.add(file, file.name)


def _status(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str], output: int, mark: str
) -> int | None:
    """Run a command with a limit, and end all that it started; return its status, or None if it ran into the limit."""
    try:
        ended = subprocess.run(
            command,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
        return ended.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_all(mark)


def _end_all(mark: str) -> None:
    """End all that a stage has started: its ranks have sessions of their own, and would disturb the next stage."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it has ended, or belongs to somebody else


def versions() -> dict[str, str]:
    """Return the device and the versions of everything that a figure may depend on."""
    found = {"device": "none", "python": platform.python_version(), "cuda": str(torch.version.cuda)}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for package in _VERSIONS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(each.name for each in STAGES)
    parser.add_argument("--stages", default="", help=f"the stages to run, with commas between them; all of: {names}")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="the time of all stages together")
    parser.add_argument("--wheels", type=Path, help="wheels of packages that this machine may lack")
    parser.add_argument("--rehearse", action="store_true", help="run what runs on the CPU, with small sizes")
    options = parser.parse_args(arguments)
    try:
        stages = chosen([each for each in options.stages.split(",") if each])
    except ValueError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    if not (torch.cuda.is_available() or options.rehearse):
        expected = "expected a CUDA device, or --rehearse for what runs on the CPU"
        print(f"gpu-check: {expected}; got torch {torch.__version__}, which sees none", file=sys.stderr)
        return 2
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    for each in filter(None, (FOLDER, out)):
        each.mkdir(parents=True, exist_ok=True)
    path = []
    if options.wheels is not None:
        print("gpu-check: taken from wheels:", ", ".join(unpack_missing(options.wheels, FOLDER / "site")) or "nothing")
        path = [FOLDER / "site"]
        sys.path.insert(0, str(path[0]))
    # A check that is told to end takes its stage along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    check = Check("cpu" if options.rehearse else "cuda", FOLDER, out, path, options.budget_s)
    check.run(stages)
    print(f"\n{check.text()}\n\nlogs and figures: {FOLDER}")
    return int(any(each.verdict is Verdict.FAILED for each in check.results))
