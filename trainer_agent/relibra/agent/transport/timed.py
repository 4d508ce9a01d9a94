"""The time that a rank waits for transfers: the part of them that computation does not hide."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from relibra.agent.transport import ExpertTransport, Handle, HostPulls, Pull, Receive, Send, Transfers

Result = TypeVar("Result")


class TimedTransport:
    """A transport that adds up how long the host waits for its handles.

    With NCCL or symmetric memory the stream of a GPU waits and not the host, so the sum is close to 0.

    Args:
        transport: the transport that moves the tensors.
        clock: returns seconds.
    """

    def __init__(self, transport: ExpertTransport, clock: Callable[[], float] = time.perf_counter) -> None:
        self._transport, self._clock = transport, clock
        self.waited_s = 0.0
        """How long this rank has waited so far."""

    @property
    def rank(self) -> int:
        """See `ExpertTransport`."""
        return self._transport.rank

    @property
    def num_ranks(self) -> int:
        """See `ExpertTransport`."""
        return self._transport.num_ranks

    @property
    def relays(self) -> bool:
        """See `ExpertTransport`."""
        return self._transport.relays

    @property
    def needs_places(self) -> bool:
        """See `ExpertTransport`."""
        return self._transport.needs_places

    @property
    def sent_bytes(self) -> int:
        """See `ExpertTransport`."""
        return self._transport.sent_bytes

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        return self._transport.memory(size_bytes, device)

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> Transfers:
        """See `ExpertTransport`."""
        return _TimedTransfers(self, self._transport.prepare(sends, receives))

    def wait_for(self, blocking: Callable[[], Result]) -> Result:
        """Call `blocking`, add the time it takes to `waited_s`, and return its result."""
        began_s = self._clock()
        result = blocking()
        self.waited_s += self._clock() - began_s
        return result


class TimedHost:
    """Host weights whose waiting time counts as that of `transport`."""

    def __init__(self, host: HostPulls, transport: TimedTransport) -> None:
        self._host, self._transport = host, transport

    def start(self, pulls: Sequence[Pull]) -> Handle:
        """See `HostPulls`. The call itself counts, too, because on a CPU the rank waits here."""
        return _Timed(self._transport, self._transport.wait_for(lambda: self._host.start(pulls)))


class _TimedTransfers:
    def __init__(self, transport: TimedTransport, transfers: Transfers) -> None:
        self._transport, self._transfers = transport, transfers

    def start(self, sent: Sequence[Sequence[Tensor]]) -> Handle:
        """See `Transfers`."""
        return _Timed(self._transport, self._transfers.start(sent))


class _Timed:
    def __init__(self, transport: TimedTransport, handle: Handle) -> None:
        self._transport, self._handle = transport, handle

    def wait(self) -> None:
        """See `Handle`."""
        self._transport.wait_for(self._handle.wait)
