"""The costs of driver calls on a machine without a driver: a stand-in takes the calls that a driver would."""

import json
from pathlib import Path
from types import SimpleNamespace

from benchmarks.gpu.calls import calls, measure
from relibra.errors import RelibraError

STREAM, WORDS, SOURCE, INTO = 7, 0x1000, 0x2000, 0x3000


def check(name: str, status: int) -> None:
    if status:
        raise RelibraError(f"{name}: CUDA error {status}")


def test_figures_are_written_after_every_call_and_a_refused_one_does_not_stop_the_next(tmp_path: Path) -> None:
    file, seen = tmp_path / "calls.json", list[int]()

    def time_us(run: object) -> float:
        seen.append(len(json.loads(file.read_text())["calls"]) if file.exists() else 0)
        return 8.0

    lib = SimpleNamespace(
        cuMemcpyAsync=lambda *_: 0,
        cuMemcpyBatchAsync=lambda *_: 0,
        cuEventRecord=lambda *_: 0,
        cuStreamWaitEvent=lambda *_: 801,
        cuStreamBatchMemOp_v2=lambda *_: 0,
    )
    of = SimpleNamespace(lib=lib, check=check)
    figures = measure(calls(of, STREAM, WORDS, SOURCE, INTO, [1, 2]), time_us, file)  # type: ignore[arg-type]
    assert seen == list(range(9))
    assert figures == json.loads(file.read_text())
    assert figures["says"][-2:] == [
        "copies, 32 at once: 8.00 us of host a call, 0.25 each",
        "FAILED wait for an event, 1 at once: cuStreamWaitEvent: CUDA error 801",
    ]
