from collections.abc import Sequence

import pytest
from torch import Tensor

from relibra.agent.transport import Handle, Pull, Receive, Send
from relibra.agent.transport.timed import TimedHost, TimedTransport


class Clock:
    """A clock that advances only while something is waited for."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Slow:
    """A transport whose handles take a second each to wait for, and no time when waited for again."""

    rank, num_ranks, relays, sent_bytes = 1, 4, True, 7

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "Slow":
        return self

    def start(self, sent: Sequence[Sequence[Tensor]]) -> Handle:
        return SlowHandle(self._clock)


class SlowHandle:
    is_done = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self) -> None:
        self._clock.now_s += 0.0 if self.is_done else 1.0
        self.is_done = True


def test_only_what_is_waited_for_counts() -> None:
    clock = Clock()
    transport = TimedTransport(Slow(clock), clock)
    transfers = transport.prepare([], [])
    first, second, _ = (transfers.start([]) for _ in range(3))
    clock.now_s += 50.0  # computation
    assert transport.waited_s == 0.0
    first.wait()
    second.wait()
    first.wait()
    assert transport.waited_s == pytest.approx(2.0)


class SlowHost:
    """Host weights whose pulls take three seconds to start, as on a CPU, and a second to wait for, as on a GPU."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(self, pulls: Sequence[Pull]) -> Handle:
        self._clock.now_s += 3.0
        return SlowHandle(self._clock)


def test_what_is_pulled_from_the_host_counts_where_the_rank_waits_for_it() -> None:
    clock = Clock()
    transport = TimedTransport(Slow(clock), clock)
    pulled, sent = TimedHost(SlowHost(clock), transport).start([]), transport.prepare([], []).start([])
    assert transport.waited_s == pytest.approx(3.0)
    clock.now_s += 50.0  # computation
    pulled.wait()
    sent.wait()
    assert transport.waited_s == pytest.approx(5.0)


def test_the_rest_is_the_transport_s_own() -> None:
    transport = TimedTransport(Slow(Clock()))
    assert (transport.rank, transport.num_ranks, transport.relays, transport.sent_bytes) == (1, 4, True, 7)
