"""The check on a machine without a GPU: it refuses, or it rehearses what runs on the CPU, from a real bundle."""

import gzip
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import check
from benchmarks.gpu.bundle import build, this_machine
from benchmarks.gpu.stages import Stage
from harness import child_process


def test_without_a_device_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 2
    said = capsys.readouterr().err
    assert "expected a CUDA device, or --rehearse for what runs on the CPU" in said
    assert f"got torch {torch.__version__}, which sees none" in said


def test_a_check_that_is_refused_keeps_what_the_last_one_found() -> None:
    found = check.FOLDER / "summary.txt"
    found.parent.mkdir(parents=True, exist_ok=True)
    found.touch()
    assert check.main([]) == 2
    assert found.exists()


def test_an_unknown_stage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--stages", "kernel"]) == 2
    assert "got kernel" in capsys.readouterr().err


HANGS = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
else:
    os.setsid()
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())  # empty once the process has ended
    except (FileNotFoundError, ProcessLookupError):
        return False


def stage(name: str, code: str, limit_s: float = 60.0) -> Stage:
    """A stage that runs Python code, with the file for figures as its argument."""
    command = ("{python}", "-c", code.replace("{", "{{").replace("}", "}}"), "{figures}")
    return Stage(name, limit_s, command)


def test_a_stage_that_fails_or_hangs_does_not_stop_the_next(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for folder in (work, out):
        folder.mkdir()
    checking = check.Check("cuda", work, out, [], budget_s=600.0)
    figures = 'import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(\'{"says": ["a figure"]}\')'
    checking.run(
        [
            stage("raises", "print('before', flush=True); raise SystemExit(3)"),
            stage("hangs", HANGS, limit_s=4.0),
            stage("measures", figures),
        ]
    )
    assert [str(each.verdict) for each in checking.results] == ["FAILED", "FAILED", "passed"]
    assert [each.reason for each in checking.results] == ["status 3", "not finished after 4 s", ""]
    assert "before" in checking.results[0].log_end
    child, deadline_s = int((work / "hangs.log").read_text().split()[-1]), time.monotonic() + 30.0
    while is_running(child):
        assert time.monotonic() < deadline_s
    assert sorted(path.name for path in out.iterdir()) == ["gpu-check.tar.gz", "summary.txt"]
    logs = ["hangs.log", "measures.log", "raises.log"]
    with tarfile.open(out / "gpu-check.tar.gz") as archive:
        assert archive.getnames() == sorted([*logs, "measures.json", "summary.json", "summary.txt"])
    assert "measures:\na figure\n" in (out / "summary.txt").read_text()
    assert "===== end of the log of raises\nbefore" in (out / "summary.txt").read_text()
    assert json.loads((work / "summary.json").read_text())["stages"][2]["figures"] == {"says": ["a figure"]}


@pytest.mark.long
def test_a_bundle_rehearses_on_the_cpu(tmp_path: Path) -> None:
    """A bundle without wheels, away from the repository, with the packages of this interpreter and small sizes."""
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    assert 1 << 20 < build(bundle, [], this_machine()) < 20 << 20
    environment = {key: value for key, value in child_process.environment().items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [bundle / "run.sh", "--rehearse"],
        env=environment | {"PYTHON": sys.executable, "OUT": str(out)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = bundle / "sources" / "build" / "gpu-check"
    stages = {each["name"]: each for each in json.loads((found / "summary.json").read_text())["stages"]}
    passed = {name for name, each in stages.items() if each["verdict"] == "passed"}
    assert passed == {"probe", "host"}
    on_device = {stages[name]["reason"] for name in stages if name not in passed}
    assert on_device == {"needs a CUDA device; this is a rehearsal on the CPU"}
    assert stages["probe"]["figures"]["says"] == ["cpu: works"]
    assert all(each["host_us"] > 0 for each in stages["host"]["figures"]["jobs"].values())
    assert stages["host"]["figures"]["overlap"] is None
    with gzip.open(found / "trace-small.json.gz") as trace:
        assert any("relibra::fetch" in event["name"] for event in json.load(trace)["traceEvents"])
    assert "unmeasured: the profiler saw no event of a device" in ended.stdout
    assert len(ended.stdout) < 12_000
