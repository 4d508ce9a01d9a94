"""Each cause of trouble is logged once, and its end once."""

import pytest

from relibra.agent.plans.trouble import Trouble


def test_S9_a_cause_is_logged_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("works again after %d failures")
    trouble.over()
    for step in range(3):
        trouble.note("Conflict", "step %d was refused", step)
    trouble.note("Unavailable", "no answer")
    trouble.over()
    trouble.over()
    trouble.note("Conflict", "step %d was refused", 9)
    assert [each.getMessage() for each in caplog.records] == [
        "step 0 was refused (logged once until it is over)",
        "no answer (logged once until it is over)",
        "works again after 4 failures",
        "step 9 was refused (logged once until it is over)",
    ]
