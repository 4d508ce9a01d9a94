"""The thread that moves parcels through lanes while its rank computes.

The engine fills one chunk at a time, for the earliest parcel that can move. So a rank with much to send serves one peer
after the other at full speed, in the order of the schedule, but never waits for a busy peer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.profiler import record_function

from relibra.agent.transport.lanes import Kind, Lane, Pipes, Record
from relibra.agent.transport.push import NUM_SMS, PushSpeeds, push_way
from relibra.kernels import expert_push


class Mover:
    """Copies memory while the rank computes; on CUDA, on a stream of its own.

    Args:
        device: where the memory is.
        speeds: the measured ways to push from it to a peer. Without them, pushes use torch's own copy.
    """

    def __init__(self, device: torch.device, speeds: PushSpeeds | None = None) -> None:
        self._speeds = speeds
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def ready(self) -> torch.cuda.Event | None:
        """Record an event on the current stream; copies that are given this event come after the work queued so far."""
        return torch.cuda.current_stream(self._stream.device).record_event() if self._stream is not None else None

    def copy(self, into: Tensor, source: Tensor, ready: object) -> None:
        """Copy within the device, and return when all bytes are there."""
        with self._after(ready):
            into.copy_(source, non_blocking=True)

    def push(self, into: Tensor, source: Tensor, ready: object) -> None:
        """Copy into memory of a peer, and return when all bytes are there."""
        if self._speeds is None or push_way(len(source), self._speeds)[0] == "copy engine":
            self.copy(into, source, ready)
            return
        with self._after(ready):
            expert_push([source], [into], num_sms=NUM_SMS)

    @contextmanager
    def _after(self, ready: object) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        assert isinstance(ready, torch.cuda.Event)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            yield
        self._stream.synchronize()


class Engine(threading.Thread):
    """The thread; it runs until it reads a STOP record.

    Other threads may append to `outgoing` and `expected` of a lane, and must then wake the engine.

    Args:
        lanes: by rank, None for this rank.
        pipes: to the peers.
        mover: copies the chunks.
    """

    def __init__(self, lanes: Sequence[Lane | None], pipes: Pipes, mover: Mover) -> None:
        super().__init__(name="relibra-peer-transport", daemon=True)
        self._lanes = {peer: lane for peer, lane in enumerate(lanes) if lane is not None}
        self._pipes, self._mover = pipes, mover

    def run(self) -> None:
        """Move all chunks that can be moved, sleep until others can be, and repeat."""
        while self._read(block=True) and self._move_all():
            self._give_up()
        self._pipes.close()

    def _move_all(self) -> bool:
        """Move chunks until none can be moved; return False when told to stop."""
        with record_function("relibra::move"):
            while self._send() | self._receive():
                if not self._read(block=False):
                    return False
        return True

    def _read(self, *, block: bool) -> bool:
        for peer, record in self._pipes.read(block=block):
            if record is None:
                self._lanes[peer].lost = "its process has ended"
            elif record.kind is Kind.FILLED:
                self._lanes[peer].filled.append(record)
            elif record.kind is Kind.TAKEN:
                self._lanes[peer].num_free += 1
            elif record.kind is Kind.STOP:
                return False
        return True

    def _send(self) -> bool:
        """Fill a chunk, if any can be filled."""
        turns = [(turn, peer) for peer, lane in self._lanes.items() if (turn := lane.next_turn) is not None]
        if turns:
            self._try(self._fill, min(turns)[1])
        return bool(turns)

    def _receive(self) -> bool:
        """Empty a chunk of every peer that has filled one."""
        peers = [peer for peer, lane in self._lanes.items() if lane.expected and lane.filled]
        for peer in peers:
            self._try(self._take, peer)
        return bool(peers)

    def _try(self, move: Callable[[int, Lane], None], peer: int) -> None:
        lane = self._lanes[peer]
        try:
            move(peer, lane)
        except Exception as error:
            lane.lost = f"this rank could not copy: {type(error).__name__}: {error}"

    def _give_up(self) -> None:
        """Fail the parcels from and to lost peers, after reading the chunks that they had filled before."""
        for peer, lane in self._lanes.items():
            if lane.lost is not None and not (lane.expected and lane.filled):
                for items in (lane.outgoing, lane.expected):
                    while items:
                        items.popleft().receipt.failed(peer, lane.lost)

    def _fill(self, peer: int, lane: Lane) -> None:
        item, chunk = lane.outgoing[0], lane.to_peer[lane.num_filled % len(lane.to_peer)]
        part = item.next_part(len(chunk))
        self._mover.push(chunk[: len(part)], part, item.ready)
        if not self._pipes.send(peer, Record(Kind.FILLED, lane.num_filled, len(item.data))):
            return  # the peer has ended; its lane is lost once the chunks that it had filled are read
        lane.num_filled += 1
        lane.num_free -= 1
        item.offset += len(chunk)
        if item.is_through:
            lane.outgoing.popleft()
            item.receipt.done(peer)

    def _take(self, peer: int, lane: Lane) -> None:
        item, record = lane.expected[0], lane.filled[0]
        if (record.sequence, record.size_bytes) != (lane.num_taken, len(item.data)):
            lane.filled.clear()
            lane.lost = (
                f"expected chunk {lane.num_taken} of a parcel of {len(item.data)} bytes, got chunk {record.sequence} "
                f"of one of {record.size_bytes} bytes"
            )
            return
        lane.filled.popleft()
        chunk = lane.from_peer[lane.num_taken % len(lane.from_peer)]
        part = item.next_part(len(chunk))
        self._mover.copy(part, chunk[: len(part)], item.ready)
        self._pipes.send(peer, Record(Kind.TAKEN, lane.num_taken))
        lane.num_taken += 1
        item.offset += len(chunk)
        if item.is_through:
            lane.expected.popleft()
            item.receipt.done(peer)
