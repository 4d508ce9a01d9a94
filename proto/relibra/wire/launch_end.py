"""What a process tells the planner when it ends."""

import contextlib
import sys

from relibra.errors import RelibraError
from relibra.wire.client import PlannerClient


def tell_end(planner: PlannerClient, job_id: str) -> None:
    """Tell the planner that the training of this launch ended, unless an error that nobody caught ends the process.

    A planner that does not answer costs a few seconds at most.
    """
    if not hasattr(sys, "last_value"):
        with contextlib.suppress(RelibraError):
            planner.end_attempt(job_id)
