"""Symmetric memory of CUDA devices, from torch: mapped by all ranks of an NVLink domain, written by copy engines.

This is the only module that calls `torch.distributed._symmetric_memory`, whose interface may change with any version of
torch. Signals are words in such memory, which streams write and wait for without kernels.
"""

import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.cuda_stream import WORD_BYTES, CudaStream, WatchedStream, no_waits
from relibra.agent.transport.jointly import jointly
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.symmetric_memory import Put, Wait
from relibra.agent.transport.watch import Watch
from relibra.errors import Unsupported
from relibra.kernels.context import Context, context, current_stream
from relibra.kernels.stream_work import allow_beside_captures, own_stream

log = logging.getLogger(__name__)

FIRST_TORCH = (2, 11)
_ADVICE = 'use transport="process_group", or "symmetric_if_possible" to use it where this fails'
_MAPPING = (
    "the GPUs must reach each other through NVLink or PCIe, and the ranks of a machine need one container, or one "
    f"process id namespace and one TMPDIR; otherwise {_ADVICE}"
)
_SAME_DEVICES = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"


class CudaMemory:
    """See `SymmetricMemory`. Construction is collective over `group`, and tries out one signal to the next rank.

    If a stream waits for a peer in vain, the process ends, at the latest after the timeout.

    Args:
        group: ranks of one NVLink domain.
        device: this rank's GPU.
        timeout_s: how long a stream may wait for peers.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them cannot share memory with the others.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        # A framework's wrapper is not known to torch; it holds the group that is.
        self._group, self._device = getattr(group, "group", group), device
        jointly([("use symmetric memory", partial(_check, device))], _ADVICE, group)
        uuids: list[Any] = [None] * self.num_ranks
        with noticing_death("sharing memory"):
            dist.all_gather_object(uuids, str(torch.cuda.get_device_properties(device).uuid), group=group)
        jointly([("reach the GPUs of all peers", partial(_check_reach, device, uuids))], _MAPPING, group)
        num_words = 2 * self.num_ranks + 1
        self._words = [memory.view(torch.int64) for memory in self.allocate(WORD_BYTES * num_words)]
        self._streams, self._waits = list[WatchedStream](), no_waits()
        probe = num_words - 1
        jointly([("signal to the next rank", partial(self._signal_next, probe))], _MAPPING, group)
        jointly([("see the signal of the previous rank", partial(self._see_previous, probe))], _MAPPING, group)
        watch = Watch(timeout_s, self._streams, allow_beside_captures)
        watch.start()
        weakref.finalize(self, watch.stop)

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        """See `SymmetricMemory`."""
        what = f"allocate {size_bytes} bytes of symmetric memory"
        advice = f"leave it more GPU memory: fewer redundant slots need less; or {_ADVICE}"
        (own,) = jointly([(what, partial(_allocate, size_bytes, self._device))], advice, self._group)
        mapping = "map the memory of its peers", partial(_map, own, self._group)
        (handle,) = jointly([mapping], _MAPPING, self._group)
        peers = range(self.num_ranks)
        return [own if peer == self.rank else handle.get_buffer(peer, own.shape, own.dtype) for peer in peers]

    def current_stream(self) -> WatchedStream:
        """See `SymmetricMemory`."""
        handle, read_words = partial(current_stream, self._device.index), partial(_read, self._words[self.rank])
        self._streams.append(WatchedStream(*self._place(), handle, self._waits, read_words))
        return self._streams[-1]

    def side_stream(self) -> CudaStream:
        """See `SymmetricMemory`."""
        stream = own_stream(self._device).cuda_stream
        return CudaStream(*self._place(), lambda: stream, self._waits)

    def _probing_stream(self) -> CudaStream:
        return CudaStream(*self._place(), partial(current_stream, self._device.index), self._waits)

    def _place(self) -> tuple[Context, Sequence[int], int]:
        return context(self._device.index), [words.data_ptr() for words in self._words], self.rank

    def _signal_next(self, probe: int) -> None:
        self._probing_stream().prepare([Put((self.rank + 1) % self.num_ranks, probe, 1)])(0)
        torch.cuda.synchronize(self._device)

    def _see_previous(self, probe: int) -> None:
        if int(self._words[self.rank].cpu()[probe]) != 1:
            raise RuntimeError("it did not arrive")
        self._probing_stream().prepare([Wait(probe, 1)])(0)
        torch.cuda.synchronize(self._device)


def _read(words: Tensor) -> list[int]:
    # The streams of the training wait, so the words are read on a stream of their own.
    with torch.cuda.stream(torch.cuda.Stream(words.device)):  # type: ignore[no-untyped-call]
        now: list[int] = words.cpu().tolist()
    return now


def obstacle(torch_version: tuple[int, int], cuda: str | None, backend: str | None, capability: tuple[int, int]) -> str:
    """Return why a GPU cannot have symmetric memory; empty if it can, as far as this process alone can tell.

    Args:
        torch_version: major and minor.
        cuda: the version of CUDA that torch was built with, if any.
        backend: torch's backend for symmetric memory on CUDA.
        capability: the GPU's compute capability.
    """
    if cuda is None:
        return "this torch was built without CUDA"
    if torch_version < FIRST_TORCH:
        return "it has torch {}.{}, and symmetric memory is used from torch {}.{} on".format(
            *torch_version, *FIRST_TORCH
        )
    if backend != "CUDA":
        return f'torch\'s backend for symmetric memory is {backend}; unset TORCH_SYMMMEM, or set it to "CUDA"'
    if capability < (8, 0):
        return "its GPU has compute capability {}.{}, and 8.0 is needed".format(*capability)
    return ""


def _check(device: torch.device) -> None:
    if device.type != "cuda":
        raise Unsupported(f"the experts are on a {device.type} device, and symmetric memory is for CUDA")
    from torch.distributed import _symmetric_memory

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    backend = _symmetric_memory.get_backend(device) if version >= FIRST_TORCH else None
    capability = torch.cuda.get_device_capability(device)
    reason = obstacle((version[0], version[1]), torch.version.cuda, backend, capability)
    if reason:
        raise Unsupported(reason)


def _check_reach(device: torch.device, uuids: Sequence[str]) -> None:
    """Require peer access to those GPUs of peers that this process sees. The mapping itself tries out the others."""
    for index in range(torch.cuda.device_count()):
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        if uuid in uuids and index != device.index and not torch.cuda.can_device_access_peer(device, index):
            raise Unsupported(f"no peer access to the GPU of rank {uuids.index(uuid)}")


def _allocate(size_bytes: int, device: torch.device) -> Tensor:
    from torch._C._distributed_c10d import _SymmetricMemory

    # Not `symm_mem.empty`, which asks for a memory pool. Torch has no pools with expandable_segments:True.
    return _SymmetricMemory.empty_strided_p2p((max(size_bytes, 1),), (1,), torch.uint8, device).zero_()[:size_bytes]


def _map(own: Tensor, group: dist.ProcessGroup) -> Any:
    from torch.distributed import _symmetric_memory

    torch.cuda.synchronize(own.device)  # the zeros must be there before peers write
    with _several_ranks_per_device_index():
        return _symmetric_memory.rendezvous(own, group)


@contextmanager
def _several_ranks_per_device_index() -> Iterator[None]:
    """Let ranks have the same device index, as under Ray, where every process sees one GPU and calls it 0."""
    before = os.environ.get(_SAME_DEVICES)
    os.environ[_SAME_DEVICES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAME_DEVICES]
        else:
            os.environ[_SAME_DEVICES] = before
