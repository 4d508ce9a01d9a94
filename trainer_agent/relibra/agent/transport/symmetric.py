"""Transport through symmetric memory: a sender pushes straight into the place where the receiver reads.

For each peer, two words of this rank count parcels:

    opened     parcels whose memory the peer has opened for this rank; this rank pushes no further
    arrived    parcels of the peer that are in this rank's memory

A receiver opens its parcels in `start`, on the current stream, so that earlier work on their memory is over. A sender
pushes on a side stream, and then says so. Words only count up: no signal is lost or taken twice, however many calls are
under way. No thread moves bytes, no byte is copied twice, and on a GPU no host waits.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims
from relibra.agent.transport.contract import Parcel
from relibra.agent.transport.symmetric_memory import Mark, SymmetricMemory
from relibra.errors import InvalidInput

_WORD = 1 << 32


class SymmetricTransport:
    """See `contract`. All parcels lie in memory of the transport where they arrive, and sends name this place.

    Args:
        device: memory and signals of the ranks of a node.
    """

    relays = True
    needs_places = True

    def __init__(self, device: SymmetricMemory) -> None:
        self._device, self._regions = device, list[Sequence[Tensor]]()
        self._incoming, self._outgoing = device.side_stream(), device.side_stream()
        self._num_opened, self._num_sent = [0] * device.num_ranks, [0] * device.num_ranks
        self._sent_bytes, self._claims = 0, Claims()

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
        arriving = {_range(parcel.tensor) for parcel in receives if parcel.tensor.nbytes}
        own = [parcel.tensor for parcel in sends if _range(parcel.tensor) not in arriving]
        claim = self._claims.take(own, [parcel.tensor for parcel in receives])
        try:
            for parcel in receives:
                self._seen_by(self.rank, "parcel.tensor", parcel.tensor)
            targets = [self._target(parcel) for parcel in sends]
        except InvalidInput:
            self._claims.release(claim)
            raise
        marks = list[Mark]()
        arrivals = self._open(receives)
        if receives:
            marks.append(self._incoming.mark())
        if sends:
            self._push(sends, targets, arrivals)
            marks.append(self._outgoing.mark())
        self._sent_bytes += sum(parcel.tensor.nbytes for parcel in sends)
        return _Transfer(self._claims, claim, marks, (*sends, *receives))

    def _open(self, receives: Sequence[Parcel]) -> dict[tuple[int, int], tuple[int, int]]:
        """Let peers fill the memory of all parcels; return the peer and the number of each, by range of memory."""
        arrivals = dict[tuple[int, int], tuple[int, int]]()
        for parcel in receives:
            self._num_opened[parcel.peer] += 1
            if parcel.tensor.nbytes:
                arrivals[_range(parcel.tensor)] = parcel.peer, self._num_opened[parcel.peer]
        for peer in dict.fromkeys(parcel.peer for parcel in receives):
            self._device.put_signal(peer, self.rank, self._num_opened[peer] % _WORD)
        for peer in dict.fromkeys(parcel.peer for parcel in receives):
            self._incoming.wait_signal(self.num_ranks + peer, self._num_opened[peer] % _WORD)
        return arrivals

    def _push(
        self,
        sends: Sequence[Parcel],
        targets: Sequence[Tensor | None],
        arrivals: dict[tuple[int, int], tuple[int, int]],
    ) -> None:
        """Queue all pushes in their order, each after its memory is open and, for a relay, after its bytes arrived."""
        self._outgoing.follow()
        due = {peer: self._num_sent[peer] + num for peer, num in Counter(each.peer for each in sends).items()}
        for parcel, target in zip(sends, targets, strict=True):
            if parcel.peer in due:
                self._outgoing.wait_signal(parcel.peer, due.pop(parcel.peer) % _WORD)
            self._num_sent[parcel.peer] += 1
            arrival = arrivals.get(_range(parcel.tensor))
            if arrival is not None:
                source, number = arrival
                self._outgoing.wait_signal(self.num_ranks + source, number % _WORD)
            if target is not None:
                self._outgoing.copy(target, _bytes(parcel.tensor))
            self._outgoing.put_signal(parcel.peer, self.num_ranks + self.rank, self._num_sent[parcel.peer] % _WORD)

    def _target(self, parcel: Parcel) -> Tensor | None:
        """Return the place of a parcel in the memory of its peer; None for an empty one."""
        place, size_bytes = parcel.place, parcel.tensor.nbytes
        if place is None or place.nbytes != size_bytes:
            got = "none" if place is None else f"one of {place.nbytes} bytes"
            raise InvalidInput.of("parcel.place", expected=f"a place of {size_bytes} bytes, as the parcel has", got=got)
        return self._seen_by(parcel.peer, "parcel.place", place)

    def _seen_by(self, peer: int, name: str, tensor: Tensor) -> Tensor | None:
        """Return the memory of `peer` at the place that `tensor` has in this rank's memory; None if it is empty."""
        if not tensor.nbytes:
            return None
        for region in self._regions:
            first = tensor.data_ptr() - region[self.rank].data_ptr()
            if 0 <= first <= region[self.rank].nbytes - tensor.nbytes:
                return region[peer][first : first + tensor.nbytes]
        expected = "memory that `memory` of this transport returned"
        raise InvalidInput.of(name, expected=expected, got=f"a {tuple(tensor.shape)} tensor elsewhere")


class _Transfer:
    """The handle of one `start`."""

    def __init__(self, claims: Claims, claim: Claim, marks: Sequence[Mark], parcels: Sequence[Parcel]) -> None:
        self._claims, self._claim, self._marks, self._parcels = claims, claim, marks, parcels

    def wait(self) -> None:
        """Return when work queued from now on comes after the transfer; on a CPU, when the transfer is over."""
        for mark in self._marks:
            mark.wait()
        self._claims.release(self._claim)
        self._claim, self._marks, self._parcels = (), (), ()


def _range(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _bytes(tensor: Tensor) -> Tensor:
    # `data` hides the access from autograd and its version counters, as with every other transport.
    return tensor.data.view(-1).view(torch.uint8)
