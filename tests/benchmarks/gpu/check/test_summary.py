"""The summary says everything in the room that it has."""

from typing import Any

from benchmarks.gpu.check.decisions import Verdict
from benchmarks.gpu.check.summary import MAX_CHARACTERS, Result, as_json, counted, text


def result(name: str, verdict: Verdict = Verdict.PASSED, reason: str = "", **more: Any) -> Result:
    return Result(name=name, teaches=f"what {name} teaches", verdict=verdict, reason=reason, **more)


RESULTS = [
    result("kernels", reason="3 passed", took_s=12.0),
    result("ranks", Verdict.FAILED, "status 1: 1 failed", log_end="x" * 8000 + "the end"),
    result("memcheck", Verdict.NOT_RUN, "compute-sanitizer is missing"),
    result("products", figures={"says": [f"line {number}" for number in range(20)]}),
]


def test_it_has_a_line_for_each_stage_and_the_figures_in_lines() -> None:
    said = text("Some GPU", {"torch": "2.11"}, RESULTS, ["trace"])
    assert said.startswith("Some GPU; torch 2.11\n")
    for line in ("kernels    passed      12 s  3 passed", "memcheck   not run      0 s  compute-sanitizer is missing"):
        assert line in said.splitlines()
    assert "trace      pending" in said.splitlines()
    assert "products: what products teaches\nline 0\n" in said
    assert "line 11\nand 8 lines more in summary.json" in said
    assert "===== end of the log of ranks" in said
    assert said.endswith("the end")


def test_failed_stages_share_the_room_that_is_left() -> None:
    failed = [result(f"s{number}", Verdict.FAILED, log_end=f"{number}" * 8000 + f"end{number}") for number in range(5)]
    said = text(None, {}, failed)
    assert len(said) <= MAX_CHARACTERS
    assert said.startswith("no CUDA device")
    assert all(f"end{number}" in said for number in range(5))


def test_it_counts_every_verdict_and_names_what_did_not_pass() -> None:
    assert counted(RESULTS) == "stages: 2 passed, 1 FAILED (ranks), 1 not run (memcheck)"


def test_the_document_has_everything() -> None:
    document = as_json(None, {"torch": "2.11"}, RESULTS)
    assert document["device"] is None
    assert [each["verdict"] for each in document["stages"]] == ["passed", "FAILED", "not run", "passed"]
    assert len(document["stages"][3]["figures"]["says"]) == 20
