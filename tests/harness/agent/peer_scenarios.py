"""Scenarios that ranks run with the peer transport only. Each returns JSON for its tests."""

import gc
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from harness.agent.contract_scenarios import TIMEOUT_S, Result, message_of, peer
from relibra.agent.transport import Parcel, PeerTransport
from relibra.agent.transport.engine import Engine


def settle() -> None:
    """Return when the threads of dropped transports have ended."""
    gc.collect()
    _ = [thread.join(TIMEOUT_S) for thread in threading.enumerate() if isinstance(thread, Engine)]
    gc.collect()


def ended(group: dist.ProcessGroup) -> Result:
    """A dropped transport ends its thread and releases its descriptors and memory."""

    def held() -> tuple[int, int]:
        own = Path("/proc/self")
        return len(list((own / "fd").iterdir())), (own / "maps").read_text().count("relibra")

    settle()
    before = held()
    transport = peer(group, TIMEOUT_S)
    during = held()
    dist.barrier(group)
    del transport
    settle()
    deadline_s = time.monotonic() + TIMEOUT_S
    while held() != before and time.monotonic() < deadline_s:
        gc.collect()
    return {"before": before, "during": during, "after": held()}


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
    settle()
    free = next_descriptors(4 * world)
    limits = [(resource.RLIMIT_FSIZE, 1000)]
    limits += [(resource.RLIMIT_NOFILE, free[left]) for left in (0, world, 2 * world, 3 * world - 1, 4 * world - 1)]
    messages = []
    for limit, value in limits:
        with limited(limit, value if rank == 1 else resource.getrlimit(limit)[0]):
            messages.append(message_of(lambda: peer(group, TIMEOUT_S)))
    settle()
    return {"messages": messages, "is_all_closed": next_descriptors(4 * world) == free}


def one_has_no_gpu(group: dist.ProcessGroup) -> Result:
    """Rank 1 must lend memory of a GPU, and has no GPU."""
    device = torch.device("cuda" if dist.get_rank(group) == 1 else "cpu")
    return {"message": message_of(lambda: PeerTransport(group, device, TIMEOUT_S))}


def one_of_many_ended(group: dist.ProcessGroup) -> Result:
    """The last rank ends while rank 0 waits for all ranks. The others then send to rank 0, and send once more."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    transport, others = peer(group, TIMEOUT_S), range(1, last)
    if rank == last:
        del transport
        settle()
    received = torch.zeros(2, 1 + last)
    if rank == 0:
        mixed = transport.start([], [Parcel(each, received[0, each : each + 1]) for each in range(1, 1 + last)])
        told = message_of(mixed.wait)
    dist.barrier(group)
    if rank in others:
        for turn in range(2):
            transport.start([Parcel(0, torch.full((1,), 10.0 * turn + rank))], []).wait()
    if rank == 0:
        healthy = transport.start([], [Parcel(each, received[1, each : each + 1]) for each in others])
        told_later = message_of(healthy.wait)
    dist.barrier(group)
    return {} if rank else {"told": told, "told_later": told_later, "received": received.tolist()}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    "peer/ended": ended,
    "peer/one_is_short": one_is_short,
    "peer/one_has_no_gpu": one_has_no_gpu,
    "peer/one_of_many_ended": one_of_many_ended,
}
