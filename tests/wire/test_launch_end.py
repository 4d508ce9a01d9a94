import logging

import pytest

from relibra.errors import Unavailable
from relibra.wire.client import PlannerClient
from relibra.wire.launch_end import tell_end


def test_S9_an_end_that_no_planner_hears_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with PlannerClient("127.0.0.1:1", timeout_s=1) as planner, caplog.at_level(logging.WARNING):
        tell_end(planner, "lost")
        try:
            raise Unavailable("the training fails")
        except Unavailable:
            tell_end(planner, "failed")
    (said,) = caplog.messages
    assert "does not know that job lost ended" in said
