"""Memory that all ranks of a node map. It has no name in any file system, and ends with the last process that maps it.

A rank makes an anonymous file and tells the other ranks its descriptor. They open it through `/proc/<pid>/fd`, which
the kernel allows for processes of one user that see each other's process ids. If one rank fails, all ranks raise.
"""

import mmap
import os
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.jointly import jointly
from relibra.agent.transport.lost_ranks import noticing_death

_MORE_MEMORY = "give the node more host memory and open files, or do without host_copy"
_ONE_MACHINE = (
    "the ranks of a node must run on one machine, as one user, in one process id namespace; start them so, or do "
    "without host_copy"
)


class _Offer(NamedTuple):
    path: str
    identity: tuple[int, int]
    """Device and inode, which tell whether the path leads to the same file; on another machine it does not."""


def shared_blocks(size_bytes: int, group: dist.ProcessGroup) -> list[Tensor]:
    """Collective: make a block of shared memory for each rank; return all blocks, uint8 zeros, by rank.

    Args:
        size_bytes: the size of this rank's block.
        group: ranks of one machine.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them has too little memory, or cannot open another rank's.
    """
    what = f"allocate {size_bytes} bytes of shared memory"
    with ExitStack() as opened:
        (own,) = jointly([(what, partial(_allocate, size_bytes))], _MORE_MEMORY, group, undo=os.close)
        opened.callback(os.close, own)
        blocks = exchange_descriptors(own, group)
        for block in blocks:
            opened.callback(os.close, block)
        attempts = [(f"map the memory of rank {peer}", partial(_map, block)) for peer, block in enumerate(blocks)]
        return jointly(attempts, _MORE_MEMORY, group)


def exchange_descriptors(own: int, group: dist.ProcessGroup) -> list[int]:
    """Collective: open the descriptors of all ranks for reading and writing; return them by rank.

    Args:
        own: the descriptor of this rank, which the caller may close afterwards.
        group: ranks of one machine.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them cannot open a descriptor of another rank.
    """
    offers: list[_Offer | None] = [None] * dist.get_world_size(group)
    with noticing_death("sharing memory"):
        dist.all_gather_object(offers, _offer(own), group=group)
    attempts = [
        (f"open the memory of rank {peer}", partial(_open, offer)) for peer, offer in enumerate(offers) if offer
    ]
    return jointly(attempts, _ONE_MACHINE, group, undo=os.close)


def _allocate(size_bytes: int) -> int:
    descriptor = os.memfd_create("relibra")
    try:
        os.posix_fallocate(descriptor, 0, max(size_bytes, 1))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _offer(descriptor: int) -> _Offer:
    status = os.fstat(descriptor)
    return _Offer(f"/proc/{os.getpid()}/fd/{descriptor}", (status.st_dev, status.st_ino))


def _open(offer: _Offer) -> int:
    descriptor = os.open(offer.path, os.O_RDWR)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != offer.identity:
        os.close(descriptor)
        raise OSError(f"{offer.path} is another file on this machine")
    return descriptor


def _map(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
