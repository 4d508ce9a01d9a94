"""What the solvers of a planner may take of its container, and one job of Redis (S6, S7).

A solver that takes more memory than the container has left is killed by the kernel, or the planner is, instead of the
solve that is too large ending with a reason. A solver with more threads than the container has cores uses up the share
of the container at the start of each period; then the kernel stops all its threads, also the one that answers agents.
"""

import logging
from pathlib import Path

from relibra.planner.settings import PlannerSettings

logger = logging.getLogger(__name__)

PLANNER_BYTES = 2 << 30
"""What a planner takes itself."""
WORKER_BYTES = 1 << 29
"""What a solver takes beside its arrays."""
_LEAST_BYTES = 1 << 26
_ROOT = Path("/sys/fs/cgroup")


def container_cores(root: Path = _ROOT) -> float | None:
    """Return how many cores the container of this process may use; None if there is no limit, or no container."""
    try:
        # Version 2 of control groups: "<quota> <period>" in microseconds, or "max <period>".
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    # Version 1 writes -1 for "no limit".
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def container_bytes(root: Path = _ROOT) -> int | None:
    """Return how much memory the container of this process may take; None if there is no limit, or no container."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        # Version 1 of control groups writes a number near 2**63 for "no limit".
        return int(text) if text.isdecimal() and int(text) < 1 << 60 else None
    return None


def needed_bytes(settings: PlannerSettings) -> int:
    """Return how much memory a planner takes if all its solvers take as much as they may."""
    return PLANNER_BYTES + settings.num_solvers * (settings.solver_memory_bytes + WORKER_BYTES)


def with_threads(settings: PlannerSettings, limit_cores: float | None, num_cores: int) -> PlannerSettings:
    """Return the settings with `num_solver_threads`: the value that somebody set, or else whole cores of the container.

    Args:
        settings: the settings.
        limit_cores: how many cores the container may use; None if there is no limit.
        num_cores: how many cores this process sees.
    """
    if settings.num_solver_threads is not None:
        return settings
    usable = num_cores if limit_cores is None else min(num_cores, int(limit_cores))
    return settings.model_copy(update={"num_solver_threads": max(1, usable)})


def with_memory(settings: PlannerSettings, limit_bytes: int | None) -> PlannerSettings:
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


def most_bytes_of_a_job(settings: PlannerSettings) -> int:
    """Return how much a job may take in Redis: its finished steps, and those that wait for sequences or for a plan."""
    return settings.retained_bytes + settings.max_open_steps * settings.max_step_size_bytes


def tell_of_room(settings: PlannerSettings, limit_bytes: int | None) -> None:
    """Warn if one job may take more than Redis has, because then it keeps Redis from taking data of the others.

    Args:
        settings: the settings of the planner.
        limit_bytes: the `maxmemory` of Redis; None if there is no limit, or Redis does not tell.
    """
    if limit_bytes is not None and most_bytes_of_a_job(settings) > limit_bytes:
        logger.warning(
            "one job may take %d bytes in Redis (retained_bytes + max_open_steps x max_step_size_bytes), but Redis "
            "refuses writes of all jobs at %d (maxmemory): lower these settings, or give Redis more memory",
            most_bytes_of_a_job(settings),
            limit_bytes,
        )
