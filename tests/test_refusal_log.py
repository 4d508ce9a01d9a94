import logging

import pytest

from relibra.refusal_log import RefusalLog


def test_each_cause_of_each_job_is_logged_at_once_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RefusalLog(logging.getLogger("refusals"), lambda: now)
    with caplog.at_level(logging.INFO, "refusals"):
        for job_id in ("a", "b"):
            for _ in range(100):
                log.note("Conflict", job_id, f"{job_id} is late")
        assert caplog.messages == ["a is late", "b is late"]
        now = 10.0
        log.note("Conflict", "a", "a is late")
        log.note("InvalidInput", "a", "a is wrong")
    assert caplog.messages[2:] == ["a is late (and 99 more in the 10 s before)", "a is wrong"]


def test_S7_causes_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(logging.getLogger("refusals"))
    for number in range(5000):
        log.note("Conflict", f"job-{number}", "late")
    assert len(log._seen) < 2000
