"""Transport through symmetric memory: a sender pushes straight into the place where the receiver reads.

For each peer, a rank has two words:

    opened     the call for which the peer has opened its memory; this rank pushes no further
    arrived    the call of the peer, and how many of its parcels are in this rank's memory

A receiver opens its memory in `start`, on the current stream, so that earlier work on it is over. A sender pushes on a
side stream, and then says so. The receiver waits for arrivals in `wait`, on the current stream. All ranks number their
calls alike, so every value is that of the call plus a constant: what a call queues is found once and queued as a whole.
Words only count up: no signal is lost or taken twice, however many calls are under way. No thread moves bytes, no byte
is copied twice, and on a GPU no host waits. By the two words that a rank has for itself, its side stream follows its
current stream (`opened`), and is followed by it (`arrived`).

Streams may share one queue of the hardware (CUDA_DEVICE_MAX_CONNECTIONS=1), in which a wait holds up all work behind
it. So a rank queues what its peers wait for, openings and pushes, before it waits for their pushes.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims, Memory
from relibra.agent.transport.contract import Receive, Send
from relibra.agent.transport.symmetric_memory import Push, Put, Queue, SymmetricMemory, Wait, Work
from relibra.errors import InvalidInput

_CALL = 1 << 16
"""By how much a call raises words, which is more than it can have parcels for one peer."""

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
        self._device, self._regions, self._num_calls = device, list[Sequence[Tensor]](), 0

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        self._regions.append(self._device.allocate(size_bytes))
        return self._regions[-1][self.rank]

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "_Transfers":
        """See `ExpertTransport`."""
        for peers in (sends, receives):
            most = max(Counter(each.peer for each in peers).values(), default=0)
            if most >= _CALL:
                raise InvalidInput.of("parcels", expected=f"less than {_CALL} of a rank for another one", got=most)
        for receive in receives:
            for tensor in receive.tensors:
                self._seen_by(self.rank, "receive.tensors", tensor)
        targets = list[tuple[int, list[_Range]]]()
        for send in sends:
            if send.places is None:
                raise InvalidInput.of("send.places", expected="a place for each tensor of the parcel", got="none")
            targets.append((send.peer, [self._seen_by(send.peer, "send.places", place) for place in send.places]))
        return _Transfers(self, targets, receives)

    def next_base(self) -> int:
        """Begin a call; return what it adds to the values of words."""
        self._num_calls += 1
        return self._num_calls * _CALL

    def _seen_by(self, peer: int, name: str, tensor: Tensor) -> _Range:
        """Return where the memory of `peer` is that lies at the place of a tensor in this rank's memory."""
        begin, size_bytes = _range(tensor)
        for region in self._regions:
            first = begin - region[self.rank].data_ptr()
            if 0 <= first <= region[self.rank].nbytes - size_bytes:
                return region[peer].data_ptr() + first, size_bytes
        if not size_bytes:
            return begin, 0
        expected = "memory that `memory` of this transport returned"
        raise InvalidInput.of(name, expected=expected, got=f"a {tuple(tensor.shape)} tensor elsewhere")


class _Transfers:
    """See `contract.Transfers`.

    Args:
        transport: moves them.
        targets: the peer of each parcel that leaves, and the places of its tensors in memory of the peer.
        receives: the parcels that arrive.
    """

    def __init__(
        self,
        transport: SymmetricTransport,
        targets: Sequence[tuple[int, Sequence[_Range]]],
        receives: Sequence[Receive],
    ) -> None:
        rank, num_ranks = transport.rank, transport.num_ranks
        self._transport, self._targets = transport, targets
        self._filled = Memory.of([tensor for receive in receives for tensor in receive.tensors])
        num_received, self._arrivals = Counter[int](), dict[_Range, Wait]()
        for peer, tensors in receives:
            num_received[peer] += 1
            self._arrivals |= {_range(each): Wait(num_ranks + peer, num_received[peer]) for each in tensors}
        is_sending = bool(targets)
        self._open = transport.current.prepare([Put(peer, rank, 0) for peer in (*num_received, *[rank] * is_sending)])
        awaited = [
            *([Wait(num_ranks + rank, 1)] * is_sending),
            *(Wait(num_ranks + p, n) for p, n in num_received.items()),
        ]
        self._await: Queue | None = transport.current.prepare(awaited) if awaited else None
        self._sent = list[_Range]()
        self._claim, self._sent_bytes = Claim(Memory.of([]), self._filled), 0
        self._push: Queue = _nothing

    def start(self, sent: Sequence[Sequence[Tensor]]) -> "_Transfer":
        """See `contract.Transfers`."""
        transport = self._transport
        ranges = [_range(tensor) for tensors in sent for tensor in tensors]
        if ranges != self._sent:
            self._route(sent, ranges)
        transport.claims.take(self._claim)
        base = transport.next_base()
        if self._await is not None:
            self._open(base)
            self._push(base)
        transport.sent_bytes += self._sent_bytes
        return _Transfer(transport.claims, self._claim, self._await, base, sent)

    def _route(self, sent: Sequence[Sequence[Tensor]], ranges: list[_Range]) -> None:
        """Find what it takes to send what lies there.

        Each parcel leaves when its memory is open and, for a relay, when it has arrived.
        """
        rank, num_ranks = self._transport.rank, self._transport.num_ranks
        work, num_sent, own = list[Work]([Wait(rank, 0)]), Counter[int](), list[Tensor]()
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
        base: of the call.
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
