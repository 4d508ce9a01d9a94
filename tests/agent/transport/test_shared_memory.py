"""Memory without a name, mapped by two ranks and by four ranks in processes of their own."""

import gc
import os
import resource
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.agent.transport_contract import group_of
from harness.distributed.layout import NODE
from harness.distributed.observed import gathered, refusal
from harness.distributed.on_ranks import on_ranks
from relibra.agent.transport.shared_memory import exchange_descriptors, shared_blocks


@pytest.mark.parametrize("world", [4, 2])
@on_ranks(NODE)
def test_every_rank_maps_what_every_other_one_asked_for(cluster, world):
    """Every rank asks for another size, rank 0 for no memory, and writes to the blocks of all others."""
    group = group_of(world)
    rank = dist.get_rank(group)
    blocks = shared_blocks(5000 * rank, group)
    assert [len(block) for block in blocks] == [max(1, 5000 * each) for each in range(world)]
    assert not any(bool(block.any()) for block in blocks)
    dist.barrier(group)
    for block in blocks[1:]:
        block[rank] = 1 + rank
    dist.barrier(group)
    assert [block[:world].tolist() for block in blocks[1:]] == [[1 + each for each in range(world)]] * (world - 1)


@on_ranks(NODE)
def test_ranks_that_cannot_share_memory_are_told_so_on_all_of_them(cluster):
    """Rank 1 offers a descriptor that no rank can open. All ranks raise together, and close what they opened."""
    group = group_of(4)
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as closed, Path("/dev/null").open() as fine:
        own = closed.fileno() if dist.get_rank() == 1 else fine.fileno()
        text = refusal(lambda: exchange_descriptors(own, group))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before, "it leaves descriptors open"
    assert text.startswith("Unsupported: rank 0 cannot open the memory of rank 1")
    assert text.endswith("start them so, or do without host_copy")
    assert set(gathered(text)) == {text}


@contextmanager
def limited(limit, value):
    """Limit a resource of this process, such as the number of open files."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def next_descriptors(num):
    """Return the descriptors that this process opens next, ascending."""
    opened = [os.dup(0) for _ in range(num)]
    for each in opened:
        os.close(each)
    return opened


@pytest.mark.parametrize("world", [4, 2])
@on_ranks(NODE)
def test_what_one_rank_cannot_do_is_refused_by_all_of_them_at_once_and_leaves_nothing_open(cluster, world):
    """Rank 1 may write only a small file, or has too few descriptors left, at every stage. No rank waits for it."""
    group = group_of(world)
    gc.collect()
    free = next_descriptors(4 * world)
    limits = [(resource.RLIMIT_FSIZE, 1000)]
    limits += [(resource.RLIMIT_NOFILE, free[left]) for left in (0, 1, world, world + 1)]
    stages = []
    for limit, value in limits:
        with limited(limit, value if dist.get_rank(group) == 1 else resource.getrlimit(limit)[0]):
            text = refusal(lambda: shared_blocks(5000, group))
        assert text.startswith("Unsupported: rank 1 cannot ")
        stages.append(text.removeprefix("Unsupported: rank 1 cannot ").split(" (")[0])
    gc.collect()
    assert next_descriptors(4 * world) == free
    allocate = "allocate 5000 bytes of shared memory"
    opening = [f"open the memory of rank {peer}" for peer in (0, world - 1)]
    assert stages == [allocate, allocate, *opening, "map the memory of rank 0"]
