"""How many cores the solvers of a planner may use inside a container.

A solver with more threads than the container has cores uses up the container's share at the start of each period. Then
the kernel stops all threads of the container, also the one that answers agents.
"""

from pathlib import Path

from relibra.planner.settings import PlannerSettings

_ROOT = Path("/sys/fs/cgroup")


def container_cores(root: Path = _ROOT) -> float | None:
    """Return how many cores the container of this process may use; None if there is no limit, or no container."""
    try:
        # Version 2 of control groups: "<quota> <period>" in microseconds, or "max <period>".
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((root / "cpu" / f"cpu.cfs_{each}_us").read_text().strip() for each in ("quota", "period"))
        except OSError:
            return None
    # Version 1 writes -1 for "no limit".
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


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
