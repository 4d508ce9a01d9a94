"""Whether one job alone may fill the Redis that all jobs share (S6)."""

import logging

from relibra.planner.settings import PlannerSettings

logger = logging.getLogger(__name__)


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
