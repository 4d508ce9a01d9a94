from contextlib import ExitStack

import pytest

from relibra.errors import TooManyCalls
from relibra.planner.limits.open_streams import OpenStreams


def test_S7_a_job_has_no_more_streams_than_its_limit_and_other_jobs_are_served() -> None:
    streams = OpenStreams(1)
    with (
        streams.open("job"),
        streams.open("other"),
        pytest.raises(TooManyCalls, match=r"job 'job' has 1 streams of reports open .* \(max_streams_per_job\)"),
        streams.open("job"),
    ):
        pass
    with streams.open("job"):
        assert len(streams) == 1
    assert not streams._streams


def test_S6_workers_beyond_the_limit_are_not_shut_out_by_those_that_send_nothing() -> None:
    streams = OpenStreams(3, idle_s=0.0)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(streams.open("job")) for _ in range(3))
        streams.hear(first)
        stack.enter_context(streams.open("job"))
        assert second.is_over.is_set(), "the stream that was silent for longest stays"
        stack.enter_context(streams.open("job"))
        assert third.is_over.is_set()
        assert not first.is_over.is_set()
        assert len(streams) == 3
    assert not streams._streams
