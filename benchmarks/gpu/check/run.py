"""Run the stages of the check, one after the other, and say what they found.

    make gpu-check                                    # or `run.sh` in the folder that `make gpu-bundle` builds
    python -m benchmarks.gpu.check [--stages kernels,ranks] [--budget-s 540] [--wheels FOLDER] [--rehearse]

Every stage is a process with a log and a time limit of its own; a stage that fails or hangs does not stop the next one.
After each stage the summary is written anew, so a check that is cut off leaves what it has found. All logs and figures
lie in `build/gpu-check`. If the variable OUT names a folder, the check also puts the summary, the traces, the log of
the stage that runs, and all logs in one archive there: few files, as some machines send no more back.

The exit status is 1 if a stage failed, and 2 if the arguments or the machine do not allow a check.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.bundle import wheels
from benchmarks.gpu.check import facts as machine
from benchmarks.gpu.check import stages
from benchmarks.gpu.check.decisions import Facts, Stage, Verdict, limit_s, refusal, verdict
from benchmarks.gpu.check.summary import Result, as_json, text
from relibra.atomic_file import write_atomically

_ROOT = Path(__file__).parents[3]
FOLDER = _ROOT / "build" / "gpu-check"
"""Where all logs and figures of the last check are."""
_SOURCES = ("services", "trainer_agent", "kernels", "proto", "tests", ".")
_KEPT_CHARACTERS = 8000
_MARK = "RELIBRA_GPU_CHECK"
"""The environment variable that all processes of a check carry."""


class Check:
    """A check in progress: the facts so far, the results, and where they are written.

    Args:
        found: the facts of the machine.
        folder: where all logs and figures are written.
        out: a folder for few files that are sent back, if there is one.
        path: folders to import from, before those of the repository.
        budget_s: the time of all stages together.
    """

    def __init__(self, found: Facts, folder: Path, out: Path | None, path: Sequence[Path], budget_s: float) -> None:
        self._facts, self._folder, self._out = found, folder, out
        self._mark = uuid.uuid4().hex
        paths = [*path, *(_ROOT / each for each in _SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONUNBUFFERED": "1",
            "OUT": str(out or folder),
            _MARK: self._mark,
        }
        self._ends_s = time.monotonic() + budget_s
        self._versions = machine.versions()
        self.results: list[Result] = []

    def run(self, wanted: Sequence[Stage]) -> None:
        """Run the stages in turn; write the summary after each one."""
        for index, stage in enumerate(wanted):
            left_s = self._ends_s - time.monotonic()
            why_not = refusal(stage, self._facts, left_s)
            if why_not is None:
                result = self._ended(stage, limit_s(stage, left_s))
            else:
                result = Result(name=stage.name, teaches=stage.teaches, verdict=Verdict.NOT_RUN, reason=why_not)
            if stage.name == "probe":
                self._facts = replace(self._facts, way=result.figures.get("way"))
            self.results.append(result)
            print(f"{stage.name}: {result.verdict} {result.reason} ({result.took_s:.0f} s)", flush=True)
            self._write([each.name for each in wanted[index + 1 :]])

    def text(self, pending: Sequence[str] = ()) -> str:
        """Return the summary for people."""
        return text(self._facts.device, self._versions, self.results, pending)

    def _ended(self, stage: Stage, limit_s: float) -> Result:
        command = list(stage.command(self._facts, str(self._folder / f"{stage.name}.json")))
        if command[0] == "-m":
            command.insert(0, self._facts.python)
        log = (self._out or self._folder) / "running.log"
        environment = self._environment | dict(stage.variables)
        began_s = time.monotonic()
        with log.open("wb") as file:
            file.write(f"{' '.join(command)}\n".encode())
            file.flush()
            try:
                status = _status(command, limit_s, environment, file.fileno())
            finally:
                _end_all(self._mark)
        took_s = time.monotonic() - began_s
        kept = self._folder / f"{stage.name}.log"
        shutil.move(log, kept)
        printed = kept.read_text(errors="replace")
        ended, reason = verdict(stage, status, limit_s, printed)
        figures = self._folder / f"{stage.name}.json"
        return Result(
            name=stage.name,
            teaches=stage.teaches,
            verdict=ended,
            reason=reason,
            took_s=took_s,
            limit_s=limit_s,
            figures=json.loads(figures.read_text()) if figures.is_file() else {},
            log_end=printed[-_KEPT_CHARACTERS:] if ended is Verdict.FAILED else "",
        )

    def _write(self, pending: Sequence[str]) -> None:
        document = json.dumps(as_json(self._facts.device, self._versions, self.results), indent=1)
        for folder in filter(None, (self._folder, self._out)):
            write_atomically(folder / "summary.json", document.encode())
            write_atomically(folder / "summary.txt", self.text(pending).encode())
        if self._out is not None:
            for trace in self._folder.glob("trace-*.json.gz"):
                shutil.copy(trace, self._out)
            with tarfile.open(self._out / "logs.tar.gz", "w:gz") as archive:
                for file in sorted(self._folder.glob("*.log")):
                    archive.add(file, file.name)


def _status(command: Sequence[str], limit_s: float, environment: Mapping[str, str], output: int) -> int | None:
    """Run a command with a limit; return its exit status, or None if it was ended at the limit."""
    process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _end_all(mark: str) -> None:
    """End all that a stage has started: its ranks have sessions of their own, and would disturb the next stage."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # it has ended, or belongs to somebody else


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(each.name for each in stages.STAGES)
    parser.add_argument("--stages", default="", help=f"the stages to run, with commas between them; all of: {names}")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="the time of all stages together")
    parser.add_argument("--wheels", type=Path, help="wheels of packages that this machine may lack")
    parser.add_argument("--rehearse", action="store_true", help="run what runs on the CPU, with small sizes")
    chosen = parser.parse_args(arguments)
    try:
        wanted = stages.chosen([each for each in chosen.stages.split(",") if each])
    except ValueError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    if not (torch.cuda.is_available() or chosen.rehearse):
        expected = "expected a CUDA device, or --rehearse for what runs on the CPU"
        print(f"gpu-check: {expected}; got torch {torch.__version__}, which sees none", file=sys.stderr)
        return 2
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    for each in filter(None, (FOLDER, out)):
        each.mkdir(parents=True, exist_ok=True)
    path = []
    if chosen.wheels is not None:
        taken, site = wheels.unpack_missing(chosen.wheels, FOLDER / "site")
        print("gpu-check: taken from wheels:", ", ".join(taken) or "nothing, the machine has them all", flush=True)
        path = [site]
        sys.path.insert(0, str(site))
    # A check that is told to end takes its stage along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    check = Check(machine.find(is_rehearsal=chosen.rehearse), FOLDER, out, path, chosen.budget_s)
    check.run(wanted)
    print(f"\n{check.text()}\n\nlogs and figures: {FOLDER}{'' if out is None else f', and in short {out}'}")
    return int(any(each.verdict is Verdict.FAILED for each in check.results))
