"""A planner process beside the ranks of a test."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from harness.distributed.observed import gathered
from harness.services import Service
from relibra.store import EmbeddedRedis


@contextmanager
def real_planner() -> Iterator[tuple[str, str | None]]:
    """Collective over all ranks: yield the address of a planner to all of them, and the URL of its Redis to rank 0."""
    if dist.get_rank() != 0:
        yield gathered(None)[0], None
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # if another rank fails, this one ends by itself and stops both
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as redis:
        planner = Service("planner", redis.url, Path(folder))
        try:
            yield gathered(planner.address)[0], redis.url
        finally:
            planner.stop()
