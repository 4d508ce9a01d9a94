"""Scenarios in which ranks share memory. Each returns JSON for its tests."""

import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from harness.agent.contract_scenarios import Result, message_of
from relibra.agent.transport.shared_memory import exchange_descriptors, shared_blocks


def blocks(group: dist.ProcessGroup) -> Result:
    """Every rank asks for another size, rank 0 for no memory, and writes to the blocks of all others."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    got = shared_blocks(5000 * rank, group)
    sizes, is_clear = [len(block) for block in got], not any(bool(block.any()) for block in got)
    dist.barrier(group)
    for block in got[1:]:
        block[rank] = 1 + rank
    dist.barrier(group)
    return {"sizes": sizes, "is_clear": is_clear, "read": [block[:world].tolist() for block in got[1:]]}


def unreachable(group: dist.ProcessGroup) -> Result:
    """Rank 1 offers a descriptor that no rank can open. All ranks raise together, and close what they opened."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as closed, Path("/dev/null").open() as fine:
        own = closed.fileno() if dist.get_rank(group) == 1 else fine.fileno()
        message = message_of(lambda: exchange_descriptors(own, group))
    return {"message": message, "num_leaked": len(list(Path("/proc/self/fd").iterdir())) - before}


@contextmanager
def limited(limit: int, value: int) -> Iterator[None]:
    """Limit a resource of this process, such as the number of open files."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def next_descriptors(num: int) -> list[int]:
    """Return the descriptors that this process opens next, ascending."""
    opened = [os.dup(0) for _ in range(num)]
    for each in opened:
        os.close(each)
    return opened


def one_is_short(group: dist.ProcessGroup) -> Result:
    """Rank 1 may write only a small file, or has too few descriptors left, at every stage. No rank waits for it."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    gc.collect()
    free = next_descriptors(4 * world)
    limits = [(resource.RLIMIT_FSIZE, 1000)]
    limits += [(resource.RLIMIT_NOFILE, free[left]) for left in (0, 1, world, world + 1)]
    messages = []
    for limit, value in limits:
        with limited(limit, value if rank == 1 else resource.getrlimit(limit)[0]):
            messages.append(message_of(lambda: shared_blocks(5000, group)))
    gc.collect()
    return {"messages": messages, "is_all_closed": next_descriptors(4 * world) == free}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    f"shared_memory/{scenario.__name__}": scenario for scenario in (blocks, unreachable, one_is_short)
}
