"""The end of a process whose streams are stuck, and of no other."""

import logging
import threading
from dataclasses import dataclass, field

import pytest

from relibra.agent.transport.watch import Watch


@dataclass
class Mark:
    peers: list[int]
    passed: threading.Event = field(default_factory=threading.Event)
    num_looks: int = 0

    def is_over(self) -> bool:
        self.num_looks += 1
        return self.passed.is_set()

    def late_peers(self) -> list[int]:
        return self.peers


@dataclass
class Stream:
    mark: Mark | None = None

    def take_mark(self) -> Mark | None:
        return self.mark


def test_L1_a_stuck_stream_ends_the_process_with_the_names_of_its_peers(caplog: pytest.LogCaptureFixture) -> None:
    prepared, ended = threading.Event(), threading.Event()
    streams = [Stream(), Stream(Mark([3, 1])), Stream(Mark([2]))]
    streams[2].mark.passed.set()
    watch = Watch(0.02, streams, prepared.set, ended.set)
    with caplog.at_level(logging.CRITICAL):
        watch.start()
        assert ended.wait(20)
        watch.join(20)
    assert not watch.is_alive()
    assert prepared.is_set()
    (message,) = caplog.messages
    assert message.startswith("ranks [1, 3] of the group did not send or take experts in time: this rank's GPU waits")
    assert message.endswith("restart from the last checkpoint")


def test_L1_a_device_that_cannot_say_whom_it_waits_for_ends_the_process_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Work that reads the device's memory may be stuck in the queue that the stream holds up."""
    ended, never = threading.Event(), threading.Event()

    class Silent(Mark):
        def late_peers(self) -> list[int]:
            never.wait()
            return self.peers

    watch = Watch(0.02, [Stream(Silent([1]))], end=ended.set)
    with caplog.at_level(logging.CRITICAL):
        watch.start()
        assert ended.wait(20)
    never.set()
    (message,) = caplog.messages
    assert message.startswith("unknown ranks of the group did not send or take experts in time")


def test_L1_a_device_that_fails_when_it_is_asked_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """A failed device stays failed, and the host may be waiting for a peer that waits for this device."""
    ended = threading.Event()

    class Failing(Mark):
        def is_over(self) -> bool:
            raise RuntimeError("an illegal memory access")

    watch = Watch(0.02, [Stream(Failing([]))], end=ended.set)
    with caplog.at_level(logging.ERROR):
        watch.start()
        assert ended.wait(20)
    first, *_, last = caplog.records
    assert first.message == "the device does not say whether it has passed a point"
    assert "illegal memory access" in str(first.exc_info[1])
    assert last.message.startswith("unknown ranks of the group did not send or take experts in time")


def test_a_stream_that_goes_on_ends_nothing_until_the_watch_is_stopped() -> None:
    passed = Mark([1])
    passed.passed.set()
    ended = threading.Event()
    watch = Watch(0.02, [Stream(passed)], end=ended.set)
    watch.start()
    while not passed.num_looks:
        assert watch.is_alive()
    watch.stop()
    watch.join(20)
    assert not watch.is_alive()
    assert not ended.is_set()
