"""The thread that keeps telling the planner that a process is alive."""

import logging
import threading

import pytest

from relibra.errors import (
    Forbidden,
    LimitExceeded,
    RelibraError,
    StaleEpoch,
    Unauthenticated,
    Unavailable,
    UnknownJob,
    Unsupported,
)
from relibra.wire.heartbeat import Heartbeat

PATIENT_S = 60.0


class Heart:
    """Counts beats, and raises the errors it was given."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self._num_beats = 0
        self._beaten = threading.Condition()

    def __call__(self) -> None:
        with self._beaten:
            self._num_beats += 1
            self._beaten.notify_all()
        if self._errors:
            raise self._errors.pop(0)

    def beats(self, at_least: int) -> bool:
        with self._beaten:
            return self._beaten.wait_for(lambda: self._num_beats >= at_least, timeout=PATIENT_S)


def test_L5_it_beats_until_it_is_stopped_and_whatever_the_planner_does() -> None:
    heart = Heart(Unavailable("away"), Unavailable("still away"))
    heartbeat = Heartbeat(heart, 0.001, "job 'job'")
    assert heart.beats(5)
    heartbeat.stop()
    heartbeat.thread.join(PATIENT_S)
    assert not heartbeat.thread.is_alive()


@pytest.mark.parametrize(
    "error",
    [
        StaleEpoch("attempt 1 is over: attempt 2 began"),
        UnknownJob("job 'job' is not registered"),
        Forbidden("the token is for job 'other'"),
        Unsupported("the planner does not know the call"),
    ],
)
def test_S9_it_says_that_it_ends_and_why(error: RelibraError, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        heartbeat = Heartbeat(Heart(error), 0.001, "job 'job'")
        heartbeat.thread.join(PATIENT_S)
    assert not heartbeat.thread.is_alive()
    assert [each.getMessage() for each in caplog.records] == [f"job 'job' is no longer kept alive: {error}"]


def test_L5_it_goes_on_after_errors_that_may_pass(caplog: pytest.LogCaptureFixture) -> None:
    passing = [
        LimitExceeded("the planner has 8192 calls open"),
        LimitExceeded("the planner has 8192 calls open"),
        Unauthenticated("the token has expired"),
        RelibraError("a bug"),
    ]
    heart = Heart(*passing, Unavailable("away"))
    with caplog.at_level(logging.INFO):
        heartbeat = Heartbeat(heart, 0.001, "job 'job'")
        assert heart.beats(8)
        heartbeat.stop()
        heartbeat.thread.join(PATIENT_S)
    assert [each.getMessage() for each in caplog.records] == [
        "cannot keep job 'job' alive, trying again every 0.001 s: the planner has 8192 calls open",
        "cannot keep job 'job' alive, trying again every 0.001 s: the token has expired",
        "cannot keep job 'job' alive, trying again every 0.001 s: a bug",
        "job 'job' is kept alive again",
    ]


def test_a_client_that_was_closed_ends_it_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = Heartbeat(Heart(ValueError("Cannot invoke RPC on closed channel!")), 0.001, "job 'job'")
    heartbeat.thread.join(PATIENT_S)
    assert not heartbeat.thread.is_alive()
    assert caplog.records == []
