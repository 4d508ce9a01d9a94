"""The costs of driver calls on a machine without a driver: a stand-in takes the calls that a driver would."""

import ctypes
import json
from pathlib import Path
from types import SimpleNamespace

from benchmarks.gpu.calls import calls, measure

STREAM, WORDS, SOURCE, INTO = 7, 0x1000, 0x2000, 0x3000


def test_figures_are_written_after_every_call_and_a_refused_one_does_not_stop_the_next(tmp_path: Path) -> None:
    file, seen = tmp_path / "calls.json", list[int]()

    def time_us(run: object) -> float:
        seen.append(len(json.loads(file.read_text())["calls"]) if file.exists() else 0)
        return 8.0

    lib = SimpleNamespace(
        cuStreamWriteValue32_v2=lambda *_: 0,
        cuStreamWaitValue32_v2=lambda *_: 801,
        cuMemcpyAsync=lambda *_: 0,
        cuEventRecord=lambda *_: 0,
        cuStreamWaitEvent=lambda *_: 0,
        cuStreamBatchMemOp_v2=lambda *_: 0,
    )
    figures = measure(calls(lib, STREAM, WORDS, SOURCE, INTO, [1, 2]), time_us, file)
    assert seen == list(range(7))
    assert figures == json.loads(file.read_text())
    assert figures["failures"] == ["wait for a word, 1 at once: CUDA error 801"]
    assert figures["says"][-2:] == [
        "write and wait for words, 32 at once: 8.00 us of host a call, 0.25 each",
        "FAILED wait for a word, 1 at once: CUDA error 801",
    ]


def test_a_batch_names_the_words_and_copies_that_single_calls_name() -> None:
    tables = dict[str, list[list[int]]]()

    def words(_stream: object, num: int, table: ctypes.Array[ctypes.c_uint64], _flags: int) -> int:
        tables["words"] = [list(table[6 * i : 6 * i + 6]) for i in range(num)]
        return 0

    def copies(to: list[int], of: list[int], sizes: list[int], num: ctypes.c_size_t, *_: object) -> int:
        tables["copies"] = [[to[i], of[i], sizes[i]] for i in range(num.value)]
        return 0

    lib = SimpleNamespace(cuStreamBatchMemOp_v2=words, cuMemcpyBatchAsync=copies)
    batches = [call for call in calls(lib, STREAM, WORDS, SOURCE, INTO, [1, 2]) if call.num_operations == 2]
    assert [call.run() for call in batches] == [0, 0]
    assert tables["words"] == [[2, WORDS, 0, 0, 0, 0], [1, WORDS + 4, 0, 0, 0, 0]]
    assert tables["copies"] == [[INTO, SOURCE, 1 << 16], [INTO + (1 << 16), SOURCE + (1 << 16), 1 << 16]]
