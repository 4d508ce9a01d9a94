"""How much memory a planner may give to its solvers inside a container (S7).

If a solver may take more than the container has left, the kernel kills it, or the planner, instead of the solve that is
too large ending with a reason.
"""

import logging
from pathlib import Path

from relibra.planner.settings import PlannerSettings

PLANNER_BYTES = 2 << 30
"""What a planner takes itself."""
WORKER_BYTES = 1 << 29
"""What a solver takes beside its arrays."""
_LEAST_BYTES = 1 << 26
_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
logger = logging.getLogger(__name__)


def container_limit_bytes(files: tuple[Path, ...] = _LIMIT_FILES) -> int | None:
    """Return how much memory the container of this process may take; None if there is no limit, or no container."""
    for path in files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        # Version 1 of control groups writes a number near 2**63 for "no limit".
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None
    return None


def needed_bytes(settings: PlannerSettings) -> int:
    """Return how much memory a planner takes if all its solvers take as much as they may."""
    return PLANNER_BYTES + settings.num_solvers * (settings.solver_memory_bytes + WORKER_BYTES)


def fitted(settings: PlannerSettings, limit_bytes: int | None) -> PlannerSettings:
    """Return the settings with a default of `solver_memory_bytes` that fits the container; warn where it is too small.

    Args:
        settings: the settings; a `solver_memory_bytes` that somebody set stays.
        limit_bytes: how much memory the container has; None if there is no limit.
    """
    if limit_bytes is None or needed_bytes(settings) <= limit_bytes:
        return settings
    share_bytes = max(_LEAST_BYTES, (limit_bytes - PLANNER_BYTES) // settings.num_solvers - WORKER_BYTES)
    if "solver_memory_bytes" in settings.model_fields_set:
        logger.warning(
            "this container may take %d bytes of memory, but %d solvers of %d bytes (solver_memory_bytes) and the "
            "planner may need %d: a large solve may be killed with all others. Give the container more memory, or set "
            "solver_memory_bytes to %d",
            limit_bytes,
            settings.num_solvers,
            settings.solver_memory_bytes,
            needed_bytes(settings),
            share_bytes,
        )
        return settings
    logger.warning(
        "solver_memory_bytes is %d instead of %d, because this container may take %d bytes of memory and has %d "
        "solvers: schedules whose solve needs more are refused. With %d bytes the container serves the default",
        share_bytes,
        settings.solver_memory_bytes,
        limit_bytes,
        settings.num_solvers,
        needed_bytes(settings),
    )
    return settings.model_copy(update={"solver_memory_bytes": share_bytes})
