"""Which stages run, how long, and how they ended."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.check.decisions import Facts, Stage, Verdict, limit_s, num_passed, refusal, verdict

STAGE = Stage(name="a stage", teaches="something", limit_s=100.0, command=lambda *_: ["-m", "x"], modules=("grpc",))
RACE = replace(STAGE, needs_sanitizer=True, name="racecheck")


def test_a_stage_with_all_it_needs_runs(facts: Facts) -> None:
    assert refusal(STAGE, facts, 50.0) is None
    assert refusal(replace(STAGE, runs_on_cpu=True), replace(facts, device=None, is_rehearsal=True), 50.0) is None


@pytest.mark.parametrize(
    ("stage", "changes", "left_s", "why"),
    [
        (STAGE, {"device": None}, 50.0, "torch sees no CUDA device"),
        (STAGE, {"device": None, "is_rehearsal": True}, 50.0, "needs a CUDA device; this is a rehearsal on the CPU"),
        (STAGE, {"absent": frozenset({"grpc"})}, 50.0, "cannot import grpc; take the wheels"),
        (replace(STAGE, needs_ranks=True), {"way": None}, 50.0, "no way was found for several ranks"),
        (RACE, {"sanitizer": None}, 50.0, "compute-sanitizer is neither"),
        (RACE, {"racing_kernels": ()}, 50.0, "no kernel uses shared memory"),
        (STAGE, {}, 9.0, "the time of the whole check is used up: 9 s are left"),
        (STAGE, {}, -3.0, "0 s are left; name it with --stages"),
    ],
)
def test_a_stage_that_does_not_run_says_why(
    facts: Facts, stage: Stage, changes: dict[str, Any], left_s: float, why: str
) -> None:
    assert why in str(refusal(stage, replace(facts, **changes), left_s))


def test_a_stage_takes_its_limit_or_what_is_left() -> None:
    assert [limit_s(STAGE, left_s) for left_s in (1000.0, 40.0)] == [100.0, 40.0]


PASSED_LOG = "....\n======== 3 passed, 1 skipped in 2.31s ========\n"
SKIPPED_LOG = "ssss\n4 skipped in 0.31s\n"


@pytest.mark.parametrize(
    ("status", "log", "ended", "reason"),
    [
        (0, PASSED_LOG, Verdict.PASSED, "3 passed, 1 skipped"),
        (0, "no tests here", Verdict.FAILED, "no test passed"),
        (0, SKIPPED_LOG, Verdict.FAILED, "no test passed: 4 skipped"),
        (1, "1 failed, 3 passed in 2.31s\n", Verdict.FAILED, "status 1: 1 failed, 3 passed"),
        (-9, "", Verdict.FAILED, "ended by signal 9"),
        (None, PASSED_LOG, Verdict.FAILED, "not finished after 100 s"),
    ],
)
def test_the_verdict_of_a_stage_of_tests(status: int | None, log: str, ended: Verdict, reason: str) -> None:
    assert verdict(replace(STAGE, counts_tests=True), status, 100.0, log) == (ended, reason)


def test_a_stage_without_tests_passes_by_its_status() -> None:
    assert verdict(STAGE, 0, 100.0, "2000 GB/s") == (Verdict.PASSED, "")


def test_the_last_counts_of_a_log_are_those_of_its_tests() -> None:
    assert num_passed("9 passed in 1s\n12 passed, 3 skipped in 9s\n") == 12
    assert num_passed("nothing") == 0
