import time

import pytest

from relibra.agent.transport.lost_ranks import noticing_death
from relibra.errors import RelibraError


def test_L1_a_rank_that_waits_long_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    deadline_s = time.monotonic() + 30.0
    with noticing_death("agreeing on a plan", patience_s=0.01):
        while not caplog.records and time.monotonic() < deadline_s:
            time.sleep(0.01)
    (record,) = caplog.records
    assert record.getMessage().startswith("agreeing on a plan: this rank has waited 0.01 s for other ranks")


def test_L1_the_error_of_a_collective_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RelibraError, match=r"agreeing on a plan: .*: connection closed; look for the rank that died"):
        fail()
    assert not caplog.records


def fail() -> None:
    with noticing_death("agreeing on a plan"):
        raise RuntimeError("connection closed")
