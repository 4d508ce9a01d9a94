"""Memory that all ranks of a node map. It has no name in any file system, and ends with the last process that maps it.

A rank makes an anonymous file or a pipe and tells the other ranks its descriptor. They open it through
`/proc/<pid>/fd`, which the kernel allows for processes of one user that see each other's process ids. If one rank
fails, all ranks raise.
"""

import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport.lost_ranks import noticing_death
from relibra.errors import Unsupported

_MORE_MEMORY = "give the node more host memory and open files, or use the process_group transport and no host copy"
_ONE_MACHINE = (
    "the ranks of a node must run on one machine, as one user, in one process id namespace; start them so, or use the "
    "process_group transport"
)
Result = TypeVar("Result")


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
        (own,) = jointly([(what, partial(_allocated, size_bytes))], _MORE_MEMORY, group, undo=os.close)
        opened.callback(os.close, own)
        blocks = exchange_descriptors([own] * dist.get_world_size(group), os.O_RDWR, group)
        for each in blocks:
            opened.callback(os.close, each)
        attempts = [(f"map the memory of rank {peer}", partial(_mapped, each)) for peer, each in enumerate(blocks)]
        return jointly(attempts, _MORE_MEMORY, group)


def exchange_descriptors(own: Sequence[int], flags: int, group: dist.ProcessGroup) -> list[int]:
    """Collective: give descriptor `own[r]` to rank r, this rank included; return those given to this rank, by rank.

    Args:
        own: descriptors, which the caller may close afterwards.
        flags: for `os.open`.
        group: ranks of one machine.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if one of them cannot open a descriptor of another rank.
    """
    rank = dist.get_rank(group)
    offers: list[list[_Offer]] = [[]] * dist.get_world_size(group)
    with noticing_death("sharing memory"):
        dist.all_gather_object(offers, [_offer(each) for each in own], group=group)
    attempts = [
        (f"open the memory of rank {peer}", partial(_open, of_peer[rank], flags)) for peer, of_peer in enumerate(offers)
    ]
    return jointly(attempts, _ONE_MACHINE, group, undo=os.close)


def jointly(
    attempts: Iterable[tuple[str, Callable[[], Result]]],
    advice: str,
    group: dist.ProcessGroup,
    undo: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Collective: make this rank's attempts, and return their results if the attempts of all ranks succeed.

    All ranks learn of a failure, so that no rank waits for a failed one in the next collective.

    Args:
        attempts: (name, function) each; the name completes "cannot ...". The first failure skips the rest.
        advice: what to do about a failure.
        group: the ranks.
        undo: releases the result of a successful attempt if the call raises.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if an attempt of one of them failed.
    """
    refusals: list[str | None] = [None] * dist.get_world_size(group)
    done, refusal, rank = list[Result](), None, dist.get_rank(group)
    with ExitStack() as undone:
        for what, attempt in attempts:
            try:
                done.append(attempt())
            except Exception as error:
                refusal = f"rank {rank} cannot {what} ({error}): {advice}"
                break
            undone.callback(undo, done[-1])
        with noticing_death("sharing memory"):
            dist.all_gather_object(refusals, refusal, group=group)
        for text in filter(None, refusals):
            raise Unsupported(text)
        undone.pop_all()
    return done


def _allocated(size_bytes: int) -> int:
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


def _open(offer: _Offer, flags: int) -> int:
    descriptor = os.open(offer.path, flags)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != offer.identity:
        os.close(descriptor)
        raise OSError(f"{offer.path} is another file on this machine")
    return descriptor


def _mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)
