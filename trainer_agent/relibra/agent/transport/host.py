"""A copy of the node's expert weights in host memory, from which every rank pulls weights without involving a peer.

The copy is useful in phase RECOMPUTE, in which weights do not change: pulls use the link between host and GPU, which is
idle then. The memory is shared between the ranks. On machines with GPUs, each rank pins its own weights and those that
it pulls (`pins`).
"""

import mmap
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.claims import Claim, Claims, Memory
from relibra.agent.transport.contract import Handle
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.pins import Pins
from relibra.agent.transport.shared_memory import shared_blocks
from relibra.errors import InvalidInput, RelibraError
from relibra.kernels.packed import packed_size_bytes, packed_views
from relibra.kernels.stream_work import own_stream


class Pull(NamedTuple):
    """One expert to pull."""

    peer: int
    """The home rank of the expert, as an index within the group. It may be this rank."""
    expert: int
    """The index among the experts of that rank."""
    into: Sequence[Tensor]
    """The contiguous tensors to fill, in the order of the expert's tensors."""


class HostPulls(Protocol):
    """The part of `HostWeights` that a fetch needs."""

    def start(self, pulls: Sequence[Pull]) -> Handle:
        """See `HostWeights`."""


class HostWeights:
    """One rank's view of the copy, which is empty until `refresh`. Construction is collective over `group`.

    Args:
        group: ranks of one node.
        experts: the experts of this rank in all layers, each a list of tensors. All ranks have the same shapes and
            dtypes in the same order. The tensors must stay the same objects.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them has too little host memory, or cannot open another rank's.
    """

    def __init__(self, group: dist.ProcessGroup, experts: Sequence[Sequence[Tensor]]) -> None:
        self._group, self._experts, self._claims = group, experts, Claims()
        self._is_filled, self._num_under_way = False, 0
        device = next((tensor.device for expert in experts for tensor in expert if tensor.is_cuda), None)
        self._stream = None if device is None else own_stream(device)
        # Experts are pinned one by one, and pages are pinned once.
        sizes_bytes = [-(-packed_size_bytes(expert) // mmap.PAGESIZE) * mmap.PAGESIZE for expert in experts]
        blocks = shared_blocks(sum(sizes_bytes), group)
        self._pages = [list(_parts(block, sizes_bytes)) for block in blocks]
        self._copies = [
            [packed_views(pages, expert) for pages, expert in zip(of_rank, experts, strict=True)]
            for of_rank in self._pages
        ]
        self._pins: Pins | None = None
        if device is not None:
            self._pins = _cuda_pins(limit_bytes=2 * sum(sizes_bytes))
            weakref.finalize(self, self._pins.clear)

    @torch.no_grad()
    def refresh(self) -> None:
        """Collective: copy the present weights of this rank's experts, and return when all ranks have done so.

        Raises:
            RelibraError: a peer is gone, or a pull is still under way.
        """
        if self._num_under_way:
            raise RelibraError(f"{self._num_under_way} pulls are under way: wait for them before refresh")
        if self._stream is not None:
            self._stream.synchronize()  # writes to pinned memory have no regard to streams that still read it
        self._meet()
        rank = dist.get_rank(self._group)
        if self._pins is not None:
            self._pins.trim()
        for i, (copies, tensors) in enumerate(zip(self._copies[rank], self._experts, strict=True)):
            self._pin(rank, i)
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor)
        self._meet()
        self._is_filled = True

    def start(self, pulls: Sequence[Pull]) -> "_Pulled":
        """Begin to fill the tensors of all pulls. On a CPU they are filled on return.

        Raises:
            InvalidInput: a tensor differs from the expert's in shape or dtype, or a pull under way fills its memory.
            RelibraError: the copy is empty.
            ValueError: a tensor is not contiguous.
        """
        if not self._is_filled:
            raise RelibraError("the host copy of the weights is empty: call refresh on all ranks first")
        pairs = list[tuple[Tensor, Tensor]]()
        for pull in pulls:
            source = self._copies[pull.peer][pull.expert]
            want, got = ([(tuple(tensor.shape), tensor.dtype) for tensor in tensors] for tensors in (source, pull.into))
            if want != got:
                raise InvalidInput.of("pull.into", expected=f"tensors of {want}", got=got)
            self._pin(pull.peer, pull.expert)
            pairs += zip(pull.into, source, strict=True)
        claim = Claim(Memory.of([]), Memory.to_fill([into for into, _ in pairs]))
        self._claims.take(claim)
        self._num_under_way += 1
        return _Pulled(self, claim, pairs)

    def use(self, group: dist.ProcessGroup) -> None:
        """Meet in `group`, which has the same ranks."""
        self._group = group

    def _pin(self, rank: int, expert: int) -> None:
        if self._pins is not None:
            self._pins.pin((rank, expert), self._pages[rank][expert])

    def _meet(self) -> None:
        with noticing_death("the host copy of weights"):
            dist.barrier(self._group)


class _Pulled:
    def __init__(self, host: HostWeights, claim: Claim, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._host: HostWeights | None = host
        self._claim, self._pairs, self._done = claim, pairs, None
        if host._stream is None:
            for into, source in pairs:
                into.data.copy_(source)
            return
        host._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(host._stream):
            for into, source in pairs:
                into.data.copy_(source, non_blocking=True)
            self._done = host._stream.record_event()

    def wait(self) -> None:
        """Return when work queued from now on comes after the transfer; a second call returns at once."""
        host, self._host = self._host, None
        if host is None:
            return
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)
        host._claims.release(self._claim)
        host._num_under_way -= 1
        self._pairs = ()


def _parts(block: Tensor, sizes_bytes: Sequence[int]) -> Iterator[Tensor]:
    begin = 0
    for size_bytes in sizes_bytes:
        yield block[begin : begin + size_bytes]
        begin += size_bytes


def _cuda_pins(limit_bytes: int) -> Pins:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def register(block: Tensor) -> None:
        torch.cuda.check_error(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))

    return Pins(register, runtime.cudaHostUnregister, limit_bytes)
