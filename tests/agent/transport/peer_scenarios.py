"""What ranks do with shared memory alone; each scenario returns JSON for its tests."""

import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from contract_scenarios import TIMEOUT_S, Result, message_of, peer

from relibra.agent.transport import Parcel
from relibra.agent.transport.engine import Engine
from relibra.agent.transport.shared_memory import exchange_descriptors


def wrong_size(group: dist.ProcessGroup) -> Result:
    transport, other = peer(group, TIMEOUT_S), dist.get_rank(group) ^ 1
    handle = transport.start([Parcel(other, torch.zeros(8))], [Parcel(other, torch.zeros(6))])
    message = message_of(handle.wait)
    dist.barrier(group)  # who drops the transport first is gone to the others
    return {"message": message}


def settle() -> None:
    """Return when the threads of dropped transports have ended."""
    gc.collect()
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(isinstance(thread, Engine) for thread in threading.enumerate()) and time.monotonic() < deadline_s:
        time.sleep(0)
    gc.collect()


def ended(group: dist.ProcessGroup) -> Result:
    """A transport that is dropped ends its thread and gives its descriptors and memory back."""

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


def unreachable(group: dist.ProcessGroup) -> Result:
    """Rank 1 offers what nobody can open; all ranks say so together, and give back what they opened."""
    settle()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as closed, Path("/dev/null").open() as fine:
        own = closed.fileno() if dist.get_rank(group) == 1 else fine.fileno()
        message = message_of(lambda: exchange_descriptors([own] * dist.get_world_size(group), os.O_RDONLY, group))
    return {"message": message, "num_leaked": len(list(Path("/proc/self/fd").iterdir())) - before}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    f"peer/{scenario.__name__}": scenario for scenario in (wrong_size, ended, unreachable)
}
