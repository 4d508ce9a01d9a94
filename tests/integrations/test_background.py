import logging
import threading

import pytest

from relibra.errors import Conflict, LimitExceeded, Unavailable
from relibra.integrations import BackgroundReporting


def refuse(text: str) -> None:
    raise Conflict(text)


def test_S9_an_error_is_logged_once_and_raised_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    with caplog.at_level(logging.WARNING), BackgroundReporting() as reporting:
        reporting.start(refuse, "step 1 is late")
        with pytest.raises(Conflict, match="step 1 is late"):
            reporting.wait()
        reporting.start(refuse, "step 2 is late")
        reporting._pool.submit(int).result()
        with pytest.raises(Conflict, match="step 2 is late"):
            reporting.start(done.set)
        reporting.wait()
        assert done.is_set(), "the call that raised an earlier error was started all the same"
    assert caplog.text.count("a report in the background failed, so its steps have no plans") == 1


def test_S9_leaving_raises_what_nobody_heard() -> None:
    with pytest.raises(Conflict, match="late"), BackgroundReporting() as reporting:
        reporting.start(refuse, "late")
    reporting = BackgroundReporting()
    reporting.start(refuse, "late")
    with pytest.raises(Conflict, match="late"):
        reporting.close()


def test_S7_reports_that_do_not_end_do_not_pile_up_and_L1_nobody_waits_for_them() -> None:
    go_on = threading.Event()
    done: list[int] = []
    with BackgroundReporting() as reporting:
        reporting.start(go_on.wait)
        reporting.start(done.append, 1)
        with pytest.raises(LimitExceeded, match="2 earlier calls have not ended"):
            reporting.start(done.append, 2)
        with pytest.raises(Unavailable, match=r"have not ended within 0.01 s"):
            reporting.wait(0.01)
        go_on.set()
    assert done == [1]


def test_a_caller_that_has_waited_starts_as_many_calls_as_before() -> None:
    """What a call leaves behind in the background, after its result is there, does not count as unfinished."""
    with BackgroundReporting() as reporting:
        for _ in range(200):
            reporting.start(int)
            reporting.start(int)
            reporting.wait()
