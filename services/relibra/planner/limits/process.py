"""The files that the process of a planner may open, and the memory that it holds (S6, S7)."""

import asyncio
import ctypes
import logging
import resource
from pathlib import Path

logger = logging.getLogger(__name__)

_OTHER_FILES = 1024
"""More files than a planner opens beside its connections, such as pipes to its solvers and connections to Redis."""
_TRIM_INTERVAL_S = 10.0


def num_open_files() -> int:
    """Return how many files and connections this process has open."""
    return sum(1 for _ in Path("/dev/fd").glob("*"))


def with_files(num_connections: int) -> int:
    """Raise the limit on open files, so that each connection can have one.

    Returns:
        The number of connections that the hard limit leaves room for, at most `num_connections`; a warning says so if
        it is less.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        logger.warning(
            "this process may open %d files, so this planner takes fewer than %d connections: raise its hard limit "
            "(ulimit -Hn) to %d",
            most,
            num_connections,
            wanted,
        )
    return min(num_connections, max(most - _OTHER_FILES, most // 2))


async def return_memory() -> None:
    """Return freed memory to the machine every few seconds, until cancelled.

    The C library keeps most of what thousands of calls took; after an attack that was hundreds of MiB for good.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return  # another C library than glibc
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        await asyncio.to_thread(trim, 0)
