"""Which attempt of the job a rank's calls belong to."""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from relibra.errors import RelibraError, StaleEpoch
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

_ASK_S = 1.0
"""The shortest time between two questions for the attempt, until the driver has registered the job."""

_T = TypeVar("_T")


class Membership:
    """Joins the attempt of a job, and says which calls belong to it. Use it from one thread.

    Args:
        job_id: the job.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, job_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job_id, self._clock = job_id, clock
        self._epoch = 0
        self._asked_at = -math.inf
        self._trouble: RelibraError | None = None

    @property
    def epoch(self) -> int:
        """The attempt that this rank joined last; 0 if none, or if it must ask anew. Any thread may read it."""
        return self._epoch

    @property
    def has_other_launch(self) -> bool:
        """Whether another launch trains the job."""
        return isinstance(self._trouble, StaleEpoch)

    def call(self, client: PlannerClient, method: Callable[[], _T], *, is_repeatable: bool = True) -> _T:
        """Return the result of a call to the planner, which belongs to the attempt of this rank.

        The rank joins a new attempt of its own launch by itself. One begins when the training goes back to an earlier
        step, and when the driver registers the job again.

        Args:
            client: the client that makes the call, with the token of this launch.
            method: makes the call.
            is_repeatable: whether to make the call again in a new attempt. What a rank did in the old one stays there.

        Raises:
            RolledBack: the call is about what the training did before it went back to an earlier step.
            StaleEpoch: the attempt of this launch is over.
            RelibraError: the rank cannot join an attempt yet, or the call failed.
        """
        if not self._epoch:
            self._join(client)
        try:
            return method()
        except StaleEpoch:
            self.rejoin()
            self._join(client)
            if not is_repeatable:
                raise
            return method()

    def rejoin(self) -> None:
        """Ask for the attempt anew before the next call: the launch may have gone back to an earlier step."""
        self._epoch, self._asked_at = 0, -math.inf

    def _join(self, client: PlannerClient) -> None:
        # The session repeats a call after trouble that is retryable, and otherwise not before the next step.
        if self._trouble is not None and self._trouble.retryable and self._clock() - self._asked_at < _ASK_S:
            raise self._trouble.with_traceback(None)  # or it would grow with every call, and hold what these hold
        self._asked_at = self._clock()
        try:
            self._epoch = client.join_attempt(self._job_id)
        except RelibraError as error:
            if isinstance(error, StaleEpoch) and not self.has_other_launch:
                log.error("training goes on without plans: %s", error)
            self._trouble = error
            raise
        if self.has_other_launch:
            log.warning("this launch trains job %s again", self._job_id)
        self._trouble = None
