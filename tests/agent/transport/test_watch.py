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
    last_mark: Mark | None = None


def test_L1_a_stuck_stream_ends_the_process_with_the_names_of_its_peers(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()
    streams = [Stream(), Stream(Mark([3, 1])), Stream(Mark([2]))]
    streams[2].last_mark.passed.set()
    watch = Watch(0.02, streams, ended.set)
    with caplog.at_level(logging.CRITICAL):
        watch.start()
        assert ended.wait(20)
        watch.join(20)
    assert not watch.is_alive()
    (message,) = caplog.messages
    assert message.startswith("ranks [1, 3] of the group did not send or take experts in time: this rank's GPU waits")
    assert message.endswith("restart from the last checkpoint")


def test_a_mark_is_looked_at_once_it_is_old_and_a_stopped_watch_looks_no_more() -> None:
    """A look during a capture of a CUDA graph breaks the capture, so marks of a fast stream go unseen."""
    old, newer = Mark([1]), Mark([1])
    old.passed.set()
    stream, ended = Stream(old), threading.Event()
    watch = Watch(0.02, [stream], ended.set)
    watch.start()
    while not old.num_looks:
        assert not ended.is_set()
    watch.stop()
    watch.join(20)
    stream.last_mark = newer
    assert not newer.num_looks
    assert not ended.is_set()
