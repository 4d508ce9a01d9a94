"""Memory that all ranks of a node map, without a name in any file system: gone with the last process that maps it.

A rank makes an anonymous file or a pipe and tells the others its number. They open it through `/proc/<pid>/fd`, which
the kernel allows to processes of the same user that see each other's process ids.
"""

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.peers import noticing_death
from relibra.errors import Unsupported


class _Offer(NamedTuple):
    path: str
    identity: tuple[int, int]
    """Device and inode, since another machine may have a descriptor of that number, too."""


def shared_blocks(size_bytes: int, group: dist.ProcessGroup) -> list[Tensor]:
    """Collective: give each rank a block of memory of the size it asks for; return all blocks, uint8 zeros, by rank.

    Raises:
        OSError: there is not so much memory.
        RelibraError: a peer is gone.
        Unsupported: the ranks cannot open each other's memory.
    """
    descriptor = os.memfd_create("relibra")
    try:
        os.posix_fallocate(descriptor, 0, max(size_bytes, 1))
        opened = exchange_descriptors([descriptor] * dist.get_world_size(group), os.O_RDWR, group)
    finally:
        os.close(descriptor)
    return [_mapped(each) for each in opened]


def exchange_descriptors(own: Sequence[int], flags: int, group: dist.ProcessGroup) -> list[int]:
    """Collective: offer `own[r]` to rank r, this one included; return what each rank offered to this one, by rank.

    Args:
        own: descriptors, which the caller may close afterwards.
        flags: of `os.open`.
        group: ranks of one machine.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them cannot open what another one offers.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    offers: list[list[_Offer]] = [[]] * size
    refusals: list[str | None] = [None] * size
    opened, refusal = list[int](), None
    with noticing_death("sharing memory"):
        dist.all_gather_object(offers, [_offer(each) for each in own], group=group)
        for peer, of_peer in enumerate(offers):
            try:
                opened.append(_open(of_peer[rank], flags))
            except OSError as error:
                refusal = refusal or f"rank {rank} cannot open the memory of rank {peer} ({error})"
        dist.all_gather_object(refusals, refusal, group=group)
    for text in filter(None, refusals):
        for descriptor in opened:
            os.close(descriptor)
        raise Unsupported(
            f"{text}: the ranks of a node must run on one machine, as one user, in one process id namespace; start "
            "them so, or use the process_group transport"
        )
    return opened


def _offer(descriptor: int) -> _Offer:
    status = os.fstat(descriptor)
    return _Offer(f"/proc/{os.getpid()}/fd/{descriptor}", (status.st_dev, status.st_ino))


def _open(offer: _Offer, flags: int) -> int:
    descriptor = os.open(offer.path, flags)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != offer.identity:
        os.close(descriptor)
        raise OSError(f"{offer.path} is something else here")
    return descriptor


def _mapped(descriptor: int) -> Tensor:
    memory = mmap.mmap(descriptor, 0)
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=torch.uint8)
