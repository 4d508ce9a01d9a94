"""The stages: their order, the commands that they run, which of them run, and how they end."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.stages import SANITIZER, STAGES, Stage, Verdict, chosen, refusal, verdict

REPOSITORY = Path(__file__).parents[3]
BY_NAME = {stage.name: stage for stage in STAGES}
STAGE = Stage("a stage", 100.0, ["x"])
OF_TESTS = replace(STAGE, command=[SANITIZER, "python", "-m", "pytest"])
OF_RANKS = replace(STAGE, command=["x", "--way", "{way}"])


def test_the_page_names_every_stage_and_its_limit_in_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", (REPOSITORY / "docs" / "gpu-check.md").read_text(), re.MULTILINE)
    assert rows == [(stage.name, f"{stage.limit_s:.0f}") for stage in STAGES]


def test_what_says_most_fits_into_nine_minutes_before_the_ranks() -> None:
    first = [stage.name for stage in STAGES].index("ranks")
    assert sum(stage.limit_s for stage in STAGES[:first]) <= 540


def test_stages_run_in_their_order_whatever_the_order_of_the_request() -> None:
    assert [each.name for each in chosen(["synccheck", "kernels"])] == ["kernels", "synccheck"]
    assert chosen([]) == list(STAGES)


def test_stages_of_ranks_bring_the_probe_along() -> None:
    assert [each.name for each in chosen(["trace"])] == ["probe", "trace"]


def test_an_unknown_stage_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"expected stages among memops, .*; got kernel$"):
        chosen(["kernel"])


def test_memcheck_sees_every_tensor_as_an_allocation_of_its_own() -> None:
    assert ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1") in BY_NAME["memcheck"].variables


def test_ranks_join_as_the_probe_found() -> None:
    assert [name for name, stage in BY_NAME.items() if stage.needs_ranks] == ["host", "ranks", "trace"]
    assert BY_NAME["ranks"].command[-4:] == ("--device", "{device}", "--way", "{way}")


def test_a_stage_with_all_it_needs_runs() -> None:
    assert refusal(OF_RANKS, "cuda", set(), "gloo", 50.0) is None
    assert refusal(replace(STAGE, runs_on_cpu=True), "cpu", set(), None, 50.0) is None


@pytest.mark.parametrize(
    ("stage", "changes", "why"),
    [
        (STAGE, {"device": "cpu"}, "needs a CUDA device; this is a rehearsal on the CPU"),
        (OF_RANKS, {"absent": {"grpc", "another"}}, "lacks grpc; `make gpu-bundle` packs"),
        (OF_TESTS, {"absent": {SANITIZER}}, "lacks compute-sanitizer"),
        (OF_RANKS, {"way": None}, "no way was found for several ranks"),
        (STAGE, {"left_s": 9.0}, "the time of the whole check is used up: 9 s are left"),
        (STAGE, {"left_s": -3.0}, "0 s are left; name it with --stages"),
    ],
)
def test_a_stage_that_does_not_run_says_why(stage: Stage, changes: dict[str, Any], why: str) -> None:
    machine = {"device": "cuda", "absent": set(), "way": "gloo", "left_s": 50.0}
    assert why in str(refusal(stage, **(machine | changes)))


PASSED_LOG = "....\n======== 3 passed, 1 skipped in 2.31s ========\n"
SKIPPED_LOG = "ssss\n4 skipped in 0.31s\n"


@pytest.mark.parametrize(
    ("status", "log", "ended", "reason"),
    [
        (0, PASSED_LOG, Verdict.PASSED, "3 passed, 1 skipped"),
        (0, "9 failed in 1s\n12 passed, 3 skipped in 9s\n", Verdict.PASSED, "12 passed, 3 skipped"),
        (0, "no tests here", Verdict.FAILED, "no test passed"),
        (0, SKIPPED_LOG, Verdict.FAILED, "no test passed: 4 skipped"),
        (1, "1 failed, 3 passed in 2.31s\n", Verdict.FAILED, "status 1: 1 failed, 3 passed"),
        (-9, "", Verdict.FAILED, "ended by signal 9"),
        (None, PASSED_LOG, Verdict.FAILED, "not finished after 100 s"),
    ],
)
def test_the_verdict_of_a_stage_of_tests(status: int | None, log: str, ended: Verdict, reason: str) -> None:
    assert verdict(OF_TESTS, status, 100.0, log) == (ended, reason)


def test_a_stage_without_tests_passes_by_its_status() -> None:
    assert verdict(STAGE, 0, 100.0, "2000 GB/s") == (Verdict.PASSED, "")
