"""Scenarios in which ranks share memory. Each returns JSON for its tests."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from harness.agent.contract_scenarios import Result, message_of
from harness.agent.peer_scenarios import settle
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
    settle()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as closed, Path("/dev/null").open() as fine:
        own = closed.fileno() if dist.get_rank(group) == 1 else fine.fileno()
        message = message_of(lambda: exchange_descriptors([own] * dist.get_world_size(group), os.O_RDONLY, group))
    return {"message": message, "num_leaked": len(list(Path("/proc/self/fd").iterdir())) - before}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    f"shared_memory/{scenario.__name__}": scenario for scenario in (blocks, unreachable)
}
