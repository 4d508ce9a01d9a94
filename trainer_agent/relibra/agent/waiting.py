"""How long a rank waits for experts on their way: the part of their transfers that computation does not hide."""

import time
from collections.abc import Callable, Sequence

from relibra.agent.transport import ExpertTransport, Handle, Parcel


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


class _Timed:
    def __init__(self, transport: TimedTransport, handle: Handle) -> None:
        self._transport, self._handle = transport, handle

    def wait(self) -> None:
        """See `Handle`."""
        began_s = self._transport._clock()
        self._handle.wait()
        self._transport.waited_s += self._transport._clock() - began_s
