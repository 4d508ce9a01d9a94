"""What a process tells the planner when it ends."""

import logging
import sys

from relibra.errors import RelibraError
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)


def tell_end(planner: PlannerClient, job_id: str) -> None:
    """Tell the planner that the training of this launch ended, unless the caller handles an error or died of one.

    A planner that does not answer costs a few seconds at most.
    """
    # In `finally` and `__exit__` the error is under way, and `last_value` comes later.
    if sys.exc_info()[1] is None and not hasattr(sys, "last_value"):
        try:
            planner.end_attempt(job_id)
        except RelibraError as error:
            log.warning(
                "relibra: the planner does not know that job %s ended, so its page waits for it: %s", job_id, error
            )
