"""The check on a machine without a GPU: it refuses, or it rehearses what runs on the CPU, from a real bundle."""

import gzip
import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.bundle.build import build
from benchmarks.gpu.check import run
from benchmarks.gpu.check.decisions import Facts, Stage
from harness import child_process


def test_without_a_device_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([]) == 2
    said = capsys.readouterr().err
    assert "expected a CUDA device, or --rehearse for what runs on the CPU" in said
    assert f"got torch {torch.__version__}, which sees none" in said


def test_a_check_that_is_refused_keeps_what_the_last_one_found() -> None:
    found = run.FOLDER / "summary.txt"
    found.parent.mkdir(parents=True, exist_ok=True)
    found.touch()
    assert run.main([]) == 2
    assert found.exists()


def test_an_unknown_stage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--stages", "kernel"]) == 2
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
    return Stage(
        name=name,
        teaches="",
        limit_s=limit_s,
        modules=(),
        command=lambda facts, figures: [facts.python, "-c", code, figures],
    )


def test_a_stage_that_fails_or_hangs_does_not_stop_the_next(facts: Facts, tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    for folder in (work, out):
        folder.mkdir()
    check = run.Check(replace(facts, python=sys.executable), work, out, [], budget_s=600.0)
    figures = 'import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(\'{"says": ["a figure"]}\')'
    check.run(
        [
            stage("raises", "print('before', flush=True); raise SystemExit(3)"),
            stage("hangs", HANGS, limit_s=4.0),
            stage("measures", figures),
        ]
    )
    assert [str(each.verdict) for each in check.results] == ["FAILED", "FAILED", "passed"]
    assert [each.reason for each in check.results] == ["status 3", "not finished after 4 s", ""]
    assert "before" in check.results[0].log_end
    child, deadline_s = int((work / "hangs.log").read_text().split()[-1]), time.monotonic() + 30.0
    while is_running(child):
        assert time.monotonic() < deadline_s
    assert sorted(path.name for path in out.iterdir()) == ["logs.tar.gz", "summary.json", "summary.txt"]
    with tarfile.open(out / "logs.tar.gz") as archive:
        assert archive.getnames() == ["hangs.log", "measures.log", "raises.log"]
    assert "a figure" in (out / "summary.txt").read_text()
    assert json.loads((out / "summary.json").read_text())["stages"][2]["figures"] == {"says": ["a figure"]}


@pytest.mark.long
def test_a_bundle_rehearses_on_the_cpu(tmp_path: Path) -> None:
    """A bundle without wheels, away from the repository, with the packages of this interpreter and small sizes."""
    bundle, out = tmp_path / "bundle", tmp_path / "out"
    assert 1 << 20 < build(bundle, []) < 20 << 20
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
    stages = {each["name"]: each for each in json.loads((out / "summary.json").read_text())["stages"]}
    passed = {name for name, each in stages.items() if each["verdict"] == "passed"}
    assert passed == {"probe", "products", "host"}
    on_device = {stages[name]["reason"] for name in stages if name not in passed}
    assert on_device == {"needs a CUDA device; this is a rehearsal on the CPU"}
    assert stages["probe"]["figures"]["tried"][0]["worked"][-1] == "reduce_scatter_tensor"
    assert {each["load"] for each in stages["products"]["figures"]["rows"]} == {"plain", "planned", "equal"}
    jobs = stages["host"]["figures"]["jobs"]
    assert jobs["replicas"]["operators"] > jobs["plain"]["operators"] > 0
    assert jobs["replicas"]["annotated_us"]["relibra::fetch"] > 0
    assert stages["host"]["figures"]["waits"] is None
    with gzip.open(out / "trace-small.json.gz") as trace:
        assert any("relibra::fetch" in event["name"] for event in json.load(trace)["traceEvents"])
    assert "unmeasured: there is no device" in ended.stdout
    assert len(ended.stdout) < 12_000
