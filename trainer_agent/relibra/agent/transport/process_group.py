"""Transport by batched point-to-point messages of a process group: gloo on CPU, NCCL on its own streams."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims
from relibra.agent.transport.contract import Parcel
from relibra.agent.transport.lost_ranks import missing


class ProcessGroupTransport:
    """See `contract`. The timeout is that of `group`, and `device` where parcels are.

    Over NCCL, `wait` makes only the current stream wait. If a peer is gone, no `RelibraError` is raised, and NCCL's
    watchdog ends the process after the timeout.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._sent_bytes, self._claims, self._device = 0, Claims(), device
        self.use(group)

    def use(self, group: dist.ProcessGroup) -> None:
        """Collective: send through `group`, which has the same ranks, while no message is under way."""
        self._group = group
        self._connect()

    def _connect(self) -> None:
        """Exchange a byte with every peer.

        NCCL connects two ranks, and allocates buffers for them, when they first exchange something. That must not be in
        the middle of the training, when memory is full. And its first call of a group takes all ranks, of which some
        may have no parcels in the first `start`.
        """
        peers = [peer for peer in range(self.num_ranks) if peer != self.rank]
        bytes_P = torch.zeros(len(peers), 1, dtype=torch.uint8, device=self._device)
        arrived_P = torch.empty_like(bytes_P)
        sends, receives = (
            [Parcel(peer, parcel) for peer, parcel in zip(peers, of_peers, strict=True)]
            for of_peers in (bytes_P, arrived_P)
        )
        _Messages(self._group, sends, receives, self._claims).wait()

    @property
    def rank(self) -> int:
        """See `ExpertTransport`."""
        return dist.get_rank(self._group)

    @property
    def num_ranks(self) -> int:
        """See `ExpertTransport`."""
        return dist.get_world_size(self._group)

    @property
    def relays(self) -> bool:
        """See `ExpertTransport`; the messages of a call are independent of each other."""
        return False

    @property
    def needs_places(self) -> bool:
        """See `ExpertTransport`; messages go to any memory."""
        return False

    @property
    def sent_bytes(self) -> int:
        """See `ExpertTransport`."""
        return self._sent_bytes

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> "_Messages":
        """See `ExpertTransport`."""
        messages = _Messages(self._group, sends, receives, self._claims)
        self._sent_bytes += sum(parcel.tensor.nbytes for parcel in sends)
        return messages


class _Messages:
    def __init__(
        self, group: dist.ProcessGroup, sends: Sequence[Parcel], receives: Sequence[Parcel], claims: Claims
    ) -> None:
        self._parcels, self._claims = (sends, receives), claims
        self._claim: Claim | None = claims.take(
            [parcel.tensor for parcel in sends], [parcel.tensor for parcel in receives]
        )
        operations = [
            dist.P2POp(operation, parcel.tensor.detach(), group=group, group_peer=parcel.peer, tag=_tag(parcel.tensor))
            for operation, parcels in ((dist.irecv, receives), (dist.isend, sends))
            for parcel in parcels
        ]
        with self._noticing_death():
            self._requests = dist.batch_isend_irecv(operations) if operations else []

    def wait(self) -> None:
        """Return when everything was sent and received."""
        with self._noticing_death():
            for request in self._requests:
                request.wait()
        self._claims.release(self._claim)
        self._requests, self._parcels, self._claim = [], ((), ()), None

    @contextmanager
    def _noticing_death(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            peers = [parcel.peer for parcels in self._parcels for parcel in parcels]
            raise missing(peers, str(error)) from error


def _tag(tensor: Tensor) -> int:
    """Return the size as the tag of a message, so that a message of another size than expected is not delivered.

    Gloo itself accepts a smaller message silently, and ends the process at a larger one. With tags, both ends give up
    after the timeout. NCCL has no tags and checks no sizes.
    """
    return tensor.nbytes % (1 << 31)
