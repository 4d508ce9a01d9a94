"""Transport through symmetric memory: a sender pushes straight into the place where the receiver reads.

For each peer, two words of this rank count parcels:

    opened     parcels whose memory the peer has opened for this rank; this rank pushes no further
    arrived    parcels of the peer that are in this rank's memory

A receiver opens its parcels in `start`, on the current stream, so that earlier work on their memory is over. A sender
pushes on a side stream, and then says so. The receiver waits for arrivals in `wait`, on the current stream. Words only
count up: no signal is lost or taken twice, however many calls are under way. No thread moves bytes, no byte is copied
twice, and on a GPU no host waits.

Streams may share one queue of the hardware (CUDA_DEVICE_MAX_CONNECTIONS=1), in which a wait holds up all work behind
it. So a rank queues what its peers wait for, openings and pushes, before it waits for their pushes.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims
from relibra.agent.transport.contract import Parcel
from relibra.agent.transport.symmetric_memory import Mark, Stream, SymmetricMemory
from relibra.errors import InvalidInput

_WORD = 1 << 32
_MOST_SEEN = 1 << 14
"""Places that are remembered."""

_Range = tuple[int, int]
"""The address and the size in bytes of a tensor."""


class SymmetricTransport:
    """See `contract`. All parcels lie in memory of the transport where they arrive, and sends name this place.

    Args:
        device: memory and signals of the ranks of a node.
    """

    relays = True
    needs_places = True

    def __init__(self, device: SymmetricMemory) -> None:
        self._device, self._regions = device, list[Sequence[Tensor]]()
        self._current, self._outgoing = device.current_stream(), device.side_stream()
        self._num_opened, self._num_sent = [0] * device.num_ranks, [0] * device.num_ranks
        self._sent_bytes, self._claims = 0, Claims()
        self._seen = dict[tuple[int, _Range, torch.dtype, torch.Size], Tensor]()
        """The memory of peers by the place in this rank's memory and what lies there."""

    @property
    def rank(self) -> int:
        """See `ExpertTransport`."""
        return self._device.rank

    @property
    def num_ranks(self) -> int:
        """See `ExpertTransport`."""
        return self._device.num_ranks

    @property
    def sent_bytes(self) -> int:
        """See `ExpertTransport`."""
        return self._sent_bytes

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        self._regions.append(self._device.allocate(size_bytes))
        return self._regions[-1][self.rank]

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> "_Transfer":
        """See `ExpertTransport`."""
        incoming = [_range(parcel.tensor) for parcel in receives]
        outgoing = [_range(parcel.tensor) for parcel in sends]
        arriving = {place for place in incoming if place[1]}
        own = [parcel.tensor for parcel, place in zip(sends, outgoing, strict=True) if place not in arriving]
        claim = self._claims.take(own, [parcel.tensor for parcel in receives])
        try:
            for parcel, place in zip(receives, incoming, strict=True):
                self._seen_by(self.rank, "parcel.tensor", parcel.tensor, place)
            targets = [self._target(parcel, place[1]) for parcel, place in zip(sends, outgoing, strict=True)]
        except InvalidInput:
            self._claims.release(claim)
            raise
        arrivals = self._open(receives, incoming)
        sent = self._push(sends, targets, [arrivals.get(place) for place in outgoing]) if sends else None
        self._sent_bytes += sum(size_bytes for _, size_bytes in outgoing)
        awaited = {self.num_ranks + parcel.peer: self._num_opened[parcel.peer] % _WORD for parcel in receives}
        return _Transfer(self._claims, claim, self._current, awaited, sent, (*sends, *receives))

    def _open(self, receives: Sequence[Parcel], places: Sequence[_Range]) -> dict[_Range, tuple[int, int]]:
        """Let peers fill the memory of all parcels; return the peer and the number of each, by range of memory."""
        arrivals = dict[_Range, tuple[int, int]]()
        for parcel, place in zip(receives, places, strict=True):
            self._num_opened[parcel.peer] += 1
            if place[1]:
                arrivals[place] = parcel.peer, self._num_opened[parcel.peer]
        for peer in dict.fromkeys(parcel.peer for parcel in receives):
            self._current.put_signal(peer, self.rank, self._num_opened[peer] % _WORD)
        return arrivals

    def _push(
        self,
        sends: Sequence[Parcel],
        targets: Sequence[Tensor | None],
        arrivals: Sequence[tuple[int, int] | None],
    ) -> Mark:
        """Queue all pushes in their order, each after its memory is open and, for a relay, after its bytes arrived."""
        self._outgoing.follow()
        due = {peer: self._num_sent[peer] + num for peer, num in Counter(parcel.peer for parcel in sends).items()}
        for parcel, target, arrival in zip(sends, targets, arrivals, strict=True):
            if parcel.peer in due:
                self._outgoing.wait_signal(parcel.peer, due.pop(parcel.peer) % _WORD)
            self._num_sent[parcel.peer] += 1
            if arrival is not None:
                source, number = arrival
                self._outgoing.wait_signal(self.num_ranks + source, number % _WORD)
            if target is not None:
                # `data` hides the access from autograd and its version counters, as with every other transport.
                self._outgoing.copy(target, parcel.tensor.data)
            self._outgoing.put_signal(parcel.peer, self.num_ranks + self.rank, self._num_sent[parcel.peer] % _WORD)
        return self._outgoing.mark()

    def _target(self, parcel: Parcel, size_bytes: int) -> Tensor | None:
        """Return the place of a parcel in the memory of its peer; None for an empty one."""
        place = parcel.place
        if place is None or place.nbytes != size_bytes:
            got = "none" if place is None else f"one of {place.nbytes} bytes"
            raise InvalidInput.of("parcel.place", expected=f"a place of {size_bytes} bytes, as the parcel has", got=got)
        return self._seen_by(parcel.peer, "parcel.place", parcel.tensor, _range(place))

    def _seen_by(self, peer: int, name: str, tensor: Tensor, place: _Range) -> Tensor | None:
        """Return the memory of `peer` at `place` of this rank's memory, viewed as `tensor`; None if it is empty."""
        begin, size_bytes = place
        if not size_bytes:
            return None
        key = peer, place, tensor.dtype, tensor.shape
        if key in self._seen:
            return self._seen[key]
        for region in self._regions:
            first = begin - region[self.rank].data_ptr()
            if 0 <= first <= region[self.rank].nbytes - size_bytes:
                if len(self._seen) >= _MOST_SEEN:
                    self._seen.clear()
                self._seen[key] = region[peer][first : first + size_bytes].view(tensor.dtype).view(tensor.shape)
                return self._seen[key]
        expected = "memory that `memory` of this transport returned"
        raise InvalidInput.of(name, expected=expected, got=f"a {tuple(tensor.shape)} tensor elsewhere")


class _Transfer:
    """The handle of one `start`.

    Args:
        claims: has the claim of this transfer.
        claim: is released when the transfer is over.
        current: the stream of the caller.
        awaited: the value that each word of this rank has when its peer has sent everything.
        sent: the end of the pushes, None without any.
        parcels: the tensors, which stay alive.
    """

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        current: Stream,
        awaited: dict[int, int],
        sent: Mark | None,
        parcels: Sequence[Parcel],
    ) -> None:
        self._claims, self._current, self._awaited, self._sent = claims, current, awaited, sent
        self._parcels: Sequence[Parcel] = parcels
        self._claim: Claim | None = claim

    def wait(self) -> None:
        """Return when work queued from now on comes after the transfer; on a CPU, when the transfer is over."""
        if self._sent is not None:
            self._sent.wait()
        for word, value in self._awaited.items():
            self._current.wait_signal(word, value)
        if self._awaited:
            self._current.mark()
        self._claims.release(self._claim)
        self._claim, self._sent, self._awaited, self._parcels = None, None, {}, ()


def _range(tensor: Tensor) -> _Range:
    return tensor.data_ptr(), tensor.nbytes
