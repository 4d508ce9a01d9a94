import logging

import pytest

from relibra.status import refusals
from relibra.status.refusals import Bound, Refusals


def test_each_setting_counts_for_itself_and_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Refusals()
    with caplog.at_level(logging.WARNING):
        for now_s in (0.0, 1.0, 59.0, 60.0):
            monkeypatch.setattr(refusals.time, "monotonic", lambda now_s=now_s: now_s)
            counted.count(Bound.VIEWERS, "full")
        counted.count(Bound.HOSTS, "who is this")
    assert counted.counts == {Bound.VIEWERS: 4, Bound.HOSTS: 1}
    assert caplog.messages == [
        "full (max_viewers; 1 times so far)",
        "full (max_viewers; 4 times so far)",
        "who is this (allowed_hosts; 1 times so far)",
    ]
