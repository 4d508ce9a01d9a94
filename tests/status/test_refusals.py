import functools
import logging

import pytest

from relibra.status import refusals
from relibra.status.refusals import Bound, Refusals


def test_each_setting_counts_for_itself_and_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(refusals, "RefusalLog", functools.partial(refusals.RefusalLog, clock=lambda: now_s))
    counted = Refusals()
    with caplog.at_level(logging.WARNING):
        for moment_s in (0.0, 1.0, 59.0, 60.0):
            now_s = moment_s
            counted.count(Bound.VIEWERS, "full")
        counted.count(Bound.HOSTS, "who is this")
    assert counted.counts == {Bound.VIEWERS: 4, Bound.HOSTS: 1}
    assert caplog.messages == [
        "full (max_viewers)",
        "full (max_viewers) (and 2 more in the 60 s before)",
        "who is this (allowed_hosts)",
    ]
