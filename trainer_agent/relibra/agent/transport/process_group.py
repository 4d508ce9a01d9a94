"""Transport by batched point-to-point messages of a process group: gloo on CPU, NCCL on its own streams."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims, Memory
from relibra.agent.transport.contract import Receive, Send
from relibra.agent.transport.lost_ranks import missing


class ProcessGroupTransport:
    """See `contract`. The timeout is that of `group`, and `device` where parcels are.

    Over NCCL, `wait` makes only the current stream wait. If a peer is gone, no `RelibraError` is raised, and NCCL's
    watchdog ends the process after the timeout.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.sent_bytes, self.claims, self._device = 0, Claims(), device
        self.use(group)

    def use(self, group: dist.ProcessGroup) -> None:
        """Collective: send through `group`, which has the same ranks, while no message is under way."""
        self.group = group
        self._connect()

    def _connect(self) -> None:
        """Exchange a byte with every peer.

        NCCL connects two ranks, and allocates buffers for them, when they first exchange something. That must not be in
        the middle of the training, when memory is full. And its first call of a group takes all ranks, of which some
        may have no parcels in the first `start`.
        """
        sent_bytes, peers = self.sent_bytes, [peer for peer in range(self.num_ranks) if peer != self.rank]
        bytes_P = torch.zeros(len(peers), 1, dtype=torch.uint8, device=self._device)
        arrived_P = torch.empty_like(bytes_P)
        receives = [Receive(peer, [byte]) for peer, byte in zip(peers, arrived_P, strict=True)]
        self.prepare([Send(peer) for peer in peers], receives).start([[byte] for byte in bytes_P]).wait()
        self.sent_bytes = sent_bytes

    @property
    def rank(self) -> int:
        """See `ExpertTransport`."""
        return dist.get_rank(self.group)

    @property
    def num_ranks(self) -> int:
        """See `ExpertTransport`."""
        return dist.get_world_size(self.group)

    @property
    def relays(self) -> bool:
        """See `ExpertTransport`; the messages of a call are independent of each other."""
        return False

    @property
    def needs_places(self) -> bool:
        """See `ExpertTransport`; messages go to any memory."""
        return False

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """See `ExpertTransport`."""
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "_Transfers":
        """See `ExpertTransport`."""
        return _Transfers(self, sends, receives)


class _Transfers:
    """See `contract.Transfers`."""

    def __init__(self, transport: ProcessGroupTransport, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        self._transport, self._to = transport, [send.peer for send in sends]
        self._arriving = [(receive.peer, tensor) for receive in receives for tensor in receive.tensors]
        self._filled = Memory.to_fill([tensor for _, tensor in self._arriving])
        self._peers = {*self._to, *(receive.peer for receive in receives)}
        self._group: dist.ProcessGroup | None = None
        self._receiving = list[dist.P2POp]()

    def start(self, sent: Sequence[Sequence[Tensor]]) -> "_Messages":
        """See `contract.Transfers`."""
        transport, group = self._transport, self._transport.group
        leaving = [(peer, tensor) for peer, tensors in zip(self._to, sent, strict=True) for tensor in tensors]
        claim = Claim(Memory.of([tensor for _, tensor in leaving]), self._filled)
        transport.claims.take(claim)
        if group is not self._group:
            self._group = group
            self._receiving = [_message(dist.irecv, tensor, group, peer) for peer, tensor in self._arriving]
        operations = [*self._receiving, *(_message(dist.isend, tensor, group, peer) for peer, tensor in leaving)]
        with _noticing_loss(self._peers):
            requests = dist.batch_isend_irecv(operations) if operations else []
        transport.sent_bytes += sum(tensor.nbytes for _, tensor in leaving)
        return _Messages(transport.claims, claim, requests, self._peers, sent)


class _Messages:
    """The handle of one `start`. It keeps the tensors alive that leave."""

    def __init__(
        self,
        claims: Claims,
        claim: Claim,
        requests: Sequence[dist.Work],
        peers: Collection[int],
        sent: Sequence[Sequence[Tensor]],
    ) -> None:
        self._claims, self._requests, self._peers, self._sent = claims, requests, peers, sent
        self._claim: Claim | None = claim

    def wait(self) -> None:
        """Return when everything was sent and received."""
        with _noticing_loss(self._peers):
            for request in self._requests:
                request.wait()
        self._claims.release(self._claim)
        self._claim, self._requests, self._sent = None, (), ()


@contextmanager
def _noticing_loss(peers: Collection[int]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise missing(peers, str(error)) from error


def _message(operation: Callable[..., Any], tensor: Tensor, group: dist.ProcessGroup, peer: int) -> dist.P2POp:
    return dist.P2POp(operation, tensor.detach(), group=group, group_peer=peer, tag=_tag(tensor))


def _tag(tensor: Tensor) -> int:
    """Return the size as the tag of a message, so that a message of another size than expected is not delivered.

    Gloo itself accepts a smaller message silently, and ends the process at a larger one. With tags, both ends give up
    after the timeout. NCCL has no tags and checks no sizes.
    """
    return tensor.nbytes % (1 << 31)
