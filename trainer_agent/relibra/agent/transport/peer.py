"""Transport between ranks of one node through memory that both map: POSIX memory on CPU, CUDA IPC on GPUs.

Memory is mapped once, when the transport is made. While its rank computes, a thread pushes parcels into the receiver's
inbox; the receiver's thread copies them from there into their tensors. Nothing has a name in a file system, so a killed
process leaves nothing behind.
"""

import itertools
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims
from relibra.agent.transport.contract import Parcel
from relibra.agent.transport.engine import Engine, Mover
from relibra.agent.transport.lanes import CHUNKS_PER_LANE, Item, Kind, Lane, Pipes
from relibra.agent.transport.lost_ranks import missing, noticing_death
from relibra.agent.transport.push import PushSpeeds, measured, push_way
from relibra.agent.transport.shared_memory import exchange_descriptors, jointly, shared_blocks

log = logging.getLogger(__name__)

_PROCESS_GROUP = "use the process_group transport"
# On a CPU, a chunk stays in the cache between its two copies. On a GPU, its copy takes long beside the launch.
_CHUNK_BYTES = {"cpu": 256 << 10, "cuda": 4 << 20}


class PeerTransport:
    """See `contract`. Construction is collective over `group`.

    A transfer to a peer is done when it is in the peer's inbox. On a GPU, `wait` blocks the calling thread until the
    transfer is done.

    Args:
        group: ranks of one node.
        device: where the tensors are.
        timeout_s: the longest that `wait` waits.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them has too little memory, or cannot open or write another rank's.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self._rank, self._num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._timeout_s, self._sent_bytes, self._claims = timeout_s, 0, Claims()
        self._turns = itertools.count()
        lane_shape = (self._num_ranks, CHUNKS_PER_LANE, _CHUNK_BYTES[device.type])
        inboxes = _inboxes(lane_shape, device, group)
        self._lanes = [
            Lane(to_peer=inboxes[peer][self._rank], from_peer=inboxes[self._rank][peer])
            for peer in range(self._num_ranks)
        ]
        push = ("push to the next rank", partial(self._push_speeds, device))
        (speeds,) = jointly([push], _PROCESS_GROUP, group)
        self._mover, self._pipes = Mover(device, speeds), _connected(group)
        others = [lane if peer != self._rank else None for peer, lane in enumerate(self._lanes)]
        Engine(others, self._pipes, self._mover).start()
        weakref.finalize(self, self._pipes.wake, Kind.STOP)

    def _push_speeds(self, device: torch.device) -> PushSpeeds | None:
        """Measure the ways to push to the next rank, on GPUs. They stand for all ranks, as behind an NVSwitch."""
        if device.type != "cuda":
            return None
        chunk = self._lanes[(self._rank + 1) % self._num_ranks].to_peer[0]
        speeds = measured(device, chunk)
        log.info("pushes to peers go by %s: %s", *push_way(len(chunk), speeds))
        return speeds

    @property
    def rank(self) -> int:
        """See `ExpertTransport`."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """See `ExpertTransport`."""
        return self._num_ranks

    @property
    def relays(self) -> bool:
        """See `ExpertTransport`; relays go on chunk by chunk."""
        return True

    @property
    def sent_bytes(self) -> int:
        """See `ExpertTransport`."""
        return self._sent_bytes

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> "_Transfer":
        """See `ExpertTransport`."""
        arriving = {_place(parcel.tensor) for parcel in receives}
        own = [parcel.tensor for parcel in sends if _place(parcel.tensor) not in arriving]
        claim = self._claims.take(own, [parcel.tensor for parcel in receives])
        self._sent_bytes += sum(parcel.tensor.nbytes for parcel in sends)
        transfer = _Transfer(self, claim, (*sends, *receives))
        ready, sources = self._mover.ready(), dict[tuple[int, int], Item]()
        for parcel in receives:
            item = sources[_place(parcel.tensor)] = Item(transfer, _bytes(parcel.tensor), ready)
            self._lanes[parcel.peer].expected.append(item)
        for parcel in sends:
            source = sources.get(_place(parcel.tensor))
            item = Item(transfer, _bytes(parcel.tensor), ready, turn=next(self._turns), source=source)
            self._lanes[parcel.peer].outgoing.append(item)
        self._pipes.wake(Kind.WAKE)
        return transfer


class _Transfer:
    """The handle of one `start`, and the receipt of its parcels."""

    def __init__(self, transport: PeerTransport, claim: Claim, parcels: Sequence[Parcel]) -> None:
        self._transport, self._claim, self._parcels = transport, claim, parcels
        self._open = [parcel.peer for parcel in parcels]
        self._first_lost: tuple[int, str] | None = None
        self._is_over = threading.Event()
        if not parcels:
            self._is_over.set()

    def done(self, peer: int) -> None:
        self._open.remove(peer)
        if not self._open:
            self._is_over.set()

    def failed(self, peer: int, why: str) -> None:
        # The parcels of other peers stay open, because the engine still moves them.
        self._first_lost = self._first_lost or (peer, why)
        self._is_over.set()

    def wait(self) -> None:
        """Return when everything was sent and received."""
        timeout_s = self._transport._timeout_s
        if not self._is_over.wait(timeout_s):
            raise missing(self._open, f"they did not answer for {timeout_s} s")
        if self._first_lost is not None:
            peer, why = self._first_lost
            raise missing([peer], why)
        self._transport._claims.release(self._claim)
        self._claim, self._parcels = (), ()


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _bytes(tensor: Tensor) -> Tensor:
    # `data` hides the write from autograd and its version counters, as with every other transport.
    return tensor.data.view(-1).view(torch.uint8)


def _inboxes(shape: tuple[int, int, int], device: torch.device, group: dist.ProcessGroup) -> list[Tensor]:
    """Collective: return the inboxes of all ranks, uint8 `[peer, chunk, bytes]`, by rank."""
    if device.type != "cuda":
        num_ranks, num_chunks, chunk_bytes = shape
        return [block.view(shape) for block in shared_blocks(num_ranks * num_chunks * chunk_bytes, group)]
    from torch.multiprocessing.reductions import reduce_tensor

    def lent() -> tuple[Tensor, Any]:
        own = torch.zeros(shape, dtype=torch.uint8, device=device)
        return own, reduce_tensor(own)  # type: ignore[no-untyped-call]

    ((own, handle),) = jointly([("lend memory of its GPU", lent)], _PROCESS_GROUP, group)
    told: list[tuple[Any, Any]] = [(None, None)] * dist.get_world_size(group)
    with noticing_death("sharing memory"):
        dist.all_gather_object(told, handle, group=group)
    told[dist.get_rank(group)] = (lambda: own), ()
    attempts = [
        (f"open the memory of rank {peer}", partial(rebuild, *args)) for peer, (rebuild, args) in enumerate(told)
    ]
    return jointly(attempts, _PROCESS_GROUP, group)


def _connected(group: dist.ProcessGroup) -> Pipes:
    """Collective: make the pipes between all ranks, and return this rank's ends."""
    attempts = [("make a pipe", os.pipe)] * dist.get_world_size(group)
    with ExitStack() as given_away, ExitStack() as kept:
        pairs = jointly(
            attempts, "allow it more open files (ulimit -n)", group, undo=lambda pair: list(map(os.close, pair))
        )
        for read, write in pairs:
            kept.callback(os.close, read)
            given_away.callback(os.close, write)
        writable = exchange_descriptors([write for _, write in pairs], os.O_WRONLY, group)
        kept.pop_all()
    return Pipes(dist.get_rank(group), [read for read, _ in pairs], writable)
