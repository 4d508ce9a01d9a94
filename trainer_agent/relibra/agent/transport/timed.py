"""How long a rank waits for experts on their way: the part of their transfers that computation does not hide."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from relibra.agent.transport import ExpertTransport, Handle, HostPulls, Parcel, Pull

Result = TypeVar("Result")


class TimedTransport:
    """A transport that adds up what its handles are waited for.

    Host time: where the stream of a GPU waits and not the host, as with NCCL, there is next to none.

    Args:
        transport: the one that carries.
        clock: in seconds.
    """

    def __init__(self, transport: ExpertTransport, clock: Callable[[], float] = time.perf_counter) -> None:
        self._transport, self._clock = transport, clock
        self.waited_s = 0.0
        """So far."""

    @property
    def rank(self) -> int:
        """See `ExpertTransport`, as for all below."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """Of the group."""
        return self._transport.num_ranks

    @property
    def relays(self) -> bool:
        """Whether a call may send what it receives."""
        return self._transport.relays

    @property
    def sent_bytes(self) -> int:
        """What this rank sent so far."""
        return self._transport.sent_bytes

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Handle:
        """Begin to send and to receive."""
        return _Timed(self, self._transport.start(sends, receives))

    def counted(self, blocking: Callable[[], Result]) -> Result:
        """Do what this rank waits for, and add up how long it lasts."""
        began_s = self._clock()
        result = blocking()
        self.waited_s += self._clock() - began_s
        return result


class TimedHost:
    """Weights in host memory, for which this rank waits as for those that come by `transport`."""

    def __init__(self, host: HostPulls, transport: TimedTransport) -> None:
        self._host, self._transport = host, transport

    def start(self, pulls: Sequence[Pull]) -> Handle:
        """See `HostPulls`; it counts, too, as on a CPU this is where the rank waits."""
        return _Timed(self._transport, self._transport.counted(lambda: self._host.start(pulls)))


class _Timed:
    def __init__(self, transport: TimedTransport, handle: Handle) -> None:
        self._transport, self._handle = transport, handle

    def wait(self) -> None:
        """See `Handle`."""
        self._transport.counted(self._handle.wait)
