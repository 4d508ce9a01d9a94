"""What ranks do with the transport of a node alone; each scenario returns JSON for its tests."""

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from contract_scenarios import TIMEOUT_S, Result, peer

from relibra.agent.transport.engine import Engine


def settle() -> None:
    """Return when the threads of dropped transports have ended."""
    gc.collect()
    _ = [thread.join(TIMEOUT_S) for thread in threading.enumerate() if isinstance(thread, Engine)]
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


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {"peer/ended": ended}
