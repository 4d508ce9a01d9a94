"""Transport through symmetric memory: a sender pushes straight into the place where the receiver reads.

For each peer, a rank has two words:

    opened     the call for which the peer has opened its memory; this rank pushes no further
    arrived    the call of the peer, and how many of its parcels are in this rank's memory

A receiver opens its memory in `start`, on the current stream, so that earlier work on it is over. A sender pushes on a
side stream, and then says so. The receiver waits for arrivals in `wait`, on the current stream. All ranks number their
calls alike, so every value is the number of the call plus a constant. A rank therefore prepares the work of a call
once, and queues it as a whole. Words only count up: no signal is lost or taken twice, however many calls are under way.
No thread moves bytes, no byte is copied twice, and on a GPU no host waits. A rank also has two words for itself: its
side stream waits for its current stream by `opened`, and its current stream waits for its side stream by `arrived`.

Streams may share one queue of the hardware (CUDA_DEVICE_MAX_CONNECTIONS=1), in which a wait holds up all work behind
it. So a rank queues what its peers wait for, openings and pushes, before it waits for their pushes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims, Memory
from relibra.agent.transport.contract import Receive, Send
from relibra.agent.transport.symmetric_memory import Push, Put, Queue, SymmetricMemory, Wait, Work
from relibra.errors import InvalidInput

_CALL = 1 << 16
"""Each call raises words by this much, which is more than the parcels that it can have for one peer."""

_MOST_SIGNALS = 4096
"""The most signals to remember."""

_Range = tuple[int, int]
"""The address and the size in bytes of a tensor."""


class SymmetricTransport:
    """See `contract`. All parcels lie in memory of the transport where they arrive, and sends name these places.

    Args:
        device: memory and signals of the ranks of a node.
    """

    relays = True
    needs_places = True

    def __init__(self, device: SymmetricMemory) -> None:
        self.rank, self.num_ranks = device.rank, device.num_ranks
        self.sent_bytes = 0
        self.claims, self.current, self.outgoing = Claims(), device.current_stream(), device.side_stream()
        self._device, self._regions, self._num_calls = device, list[_Region](), 0
        self._signals = dict[tuple[bool, tuple[tuple[int, int], ...]], _Signals]()

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        memory = self._device.allocate(size_bytes)
        own = memory[self.rank]
        begin = own.data_ptr()
        self._regions.append(
            _Region(begin, begin + own.nbytes, [of_peer.data_ptr() - begin for of_peer in memory], memory)
        )
        return own

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "_Transfers":
        """See `ExpertTransport`."""
        filled = Memory.to_fill([tensor for receive in receives for tensor in receive.tensors])
        self._region("receive.tensors", filled)
        targets: list[tuple[int, list[_Range]]] = []
        for peer, places in sends:
            if places is None:
                raise InvalidInput.of("send.places", expected="a place for each tensor of the parcel", got="none")
            region = self._region("send.places", Memory.of(places))
            ahead = 0 if region is None else region.ahead[peer]
            targets.append((peer, [(place.data_ptr() + ahead, place.nbytes) for place in places]))
        return _Transfers(self, targets, receives, filled)

    def signals(self, is_sending: bool, num_received: Counter[int]) -> "_Signals":
        """Return what the current stream signals and waits for in a transfer; most cells share these with other cells.

        Args:
            is_sending: whether the rank sends something.
            num_received: by peer, the parcels that arrive.
        """
        key = is_sending, tuple(num_received.items())
        if key not in self._signals:
            if max(num_received.values(), default=0) >= _CALL:
                raise InvalidInput.of("parcels", expected=f"less than {_CALL} from a rank", got=dict(num_received))
            if len(self._signals) >= _MOST_SIGNALS:
                self._signals.clear()
            rank, arrived = self.rank, self.num_ranks
            opened = [Put(peer, rank, 0) for peer in (*num_received, *[rank] * is_sending)]
            awaited = [Wait(arrived + rank, 1)] * is_sending + [Wait(arrived + p, n) for p, n in num_received.items()]
            self._signals[key] = _Signals(self.current.prepare(opened), self.current.prepare(awaited))
        return self._signals[key]

    def next_base(self) -> int:
        """Begin a call; return what it adds to the values of words."""
        self._num_calls += 1
        return self._num_calls * _CALL

    def _region(self, name: str, memory: Memory) -> "_Region | None":
        """Return the region that some memory is in; None for no memory."""
        if not memory.parts:
            return None
        for region in self._regions:
            if region.begin <= memory.begin and memory.end <= region.end:
                return region
        expected, size_bytes = "memory that `memory` of this transport returned", memory.end - memory.begin
        raise InvalidInput.of(name, expected=expected, got=f"a tensor elsewhere within {size_bytes} bytes")


class _Region(NamedTuple):
    """Memory of the transport."""

    begin: int
    end: int
    ahead: Sequence[int]
    """The bytes from this rank's memory to the mapped memory of each peer."""
    memory: Sequence[Tensor]
    """The memory of all ranks, which this keeps alive."""


class _Signals(NamedTuple):
    """The part of the current stream in a transfer."""

    open: Queue
    wait: Queue


class _Transfers:
    """See `contract.Transfers`.

    Args:
        transport: moves them.
        targets: the peer of each parcel that leaves, and the places of its tensors in memory of the peer.
        receives: the parcels that arrive.
        filled: their memory.
    """

    def __init__(
        self,
        transport: SymmetricTransport,
        targets: Sequence[tuple[int, Sequence[_Range]]],
        receives: Sequence[Receive],
        filled: Memory,
    ) -> None:
        self._transport, self._targets, self._filled = transport, targets, filled
        num_received: Counter[int] = Counter()
        self._arrivals: dict[_Range, Wait] = {}
        for peer, tensors in receives:
            num_received[peer] += 1
            if targets:
                arrival = Wait(transport.num_ranks + peer, num_received[peer])
                self._arrivals |= {_range(tensor): arrival for tensor in tensors}
        self._signals = transport.signals(bool(targets), num_received) if targets or receives else None
        self._sent: list[_Range] | None = None
        self._push: Queue = _nothing

    def start(self, sent: Sequence[Sequence[Tensor]]) -> "_Transfer":
        """See `contract.Transfers`."""
        transport = self._transport
        ranges = [_range(tensor) for tensors in sent for tensor in tensors]
        if ranges != self._sent:
            self._route(sent, ranges)
        transport.claims.take(self._claim)
        base, signals = transport.next_base(), self._signals
        if signals is not None:
            signals.open(base)
            self._push(base)
        transport.sent_bytes += self._sent_bytes
        return _Transfer(transport.claims, self._claim, None if signals is None else signals.wait, base, sent)

    def _route(self, sent: Sequence[Sequence[Tensor]], ranges: list[_Range]) -> None:
        """Prepare the work that sends these tensors.

        Each parcel leaves when its memory is open and, for a relay, when it has arrived.
        """
        rank, num_ranks = self._transport.rank, self._transport.num_ranks
        num_sent: Counter[int] = Counter()
        work: list[Work] = [Wait(rank, 0)]
        own: list[Tensor] = []
        for (peer, targets), tensors in zip(self._targets, sent, strict=True):
            sources = [_range(tensor) for tensor in tensors]
            if (want := [size for _, size in targets]) != (got := [size for _, size in sources]):
                raise InvalidInput.of("parcel", expected=f"tensors of {want} bytes, as its places have", got=got)
            if not num_sent[peer]:
                work.append(Wait(peer, 0))
            num_sent[peer] += 1
            work += dict.fromkeys(self._arrivals[source] for source in sources if source in self._arrivals)
            pairs = zip(targets, sources, strict=True)
            work += [Push(into, source, size) for (into, size), (source, _) in pairs if size]
            work.append(Put(peer, num_ranks + rank, num_sent[peer]))
            own += [tensor for tensor, source in zip(tensors, sources, strict=True) if source not in self._arrivals]
        self._claim = Claim(Memory.of(own), self._filled)
        if self._targets:
            self._push = self._transport.outgoing.prepare([*work, Put(rank, num_ranks + rank, 1)])
        self._sent, self._sent_bytes = ranges, sum(size for _, size in ranges)


class _Transfer:
    """The handle of one `start`.

    Args:
        claims: has the claim of this transfer.
        claim: is released when the transfer is over.
        wait: queues the wait for all that leaves and arrives, if there is something.
        base: what the call adds to the values of words.
        sent: the tensors that leave, which stay alive.
    """

    def __init__(
        self, claims: Claims, claim: Claim, wait: Queue | None, base: int, sent: Sequence[Sequence[Tensor]]
    ) -> None:
        self._claims, self._wait, self._base, self._sent = claims, wait, base, sent
        self._claim: Claim | None = claim

    def wait(self) -> None:
        """Return when work queued from now on comes after the transfer; on a CPU, when the transfer is over."""
        if self._wait is not None:
            self._wait(self._base)
        self._claims.release(self._claim)
        self._claim, self._wait, self._sent = None, None, ()


def _nothing(_: int) -> None:
    """Queue nothing."""


def _range(tensor: Tensor) -> _Range:
    return tensor.data_ptr(), tensor.nbytes
