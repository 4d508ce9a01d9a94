"""Which attempt of the job a rank's calls belong to."""

import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from relibra.agent.plans.trainer_group import TrainerGroup
from relibra.errors import AlreadyRunning, RelibraError, StaleEpoch, Unsupported
from relibra.wire.client import PlannerClient
from relibra.wire.launch import Joined

log = logging.getLogger(__name__)

_ASK_S = 1.0
"""The shortest time between two questions for the attempt while a step waits."""
_LOOK_S = 5.0
"""The time between these questions while no step waits."""
_OVER_S = 60.0
"""The time between them once another launch has taken over. The ranks may train unplanned for days, and change nothing
by asking; they find their place again if the other launch dies and their own driver registers the job again."""
_TAKEOVER_S = 60.0
"""How long steps wait for another launch to fall silent; later steps of the launch do not wait for it."""

_T = TypeVar("_T")


class Membership:
    """Joins the attempt of a job, stamps calls with it, and keeps it alive. Use it from one thread.

    While the rank belongs to no attempt, it asks at most once a second. After another launch has taken over its
    attempt, it asks once a minute.

    Args:
        job_id: the job.
        group: the trainer ranks of this launch.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, job_id: str, group: TrainerGroup, clock: Callable[[], float] = time.monotonic) -> None:
        self._job_id, self._group, self._clock = job_id, group, clock
        self._joined: Joined | None = None
        self._epoch = 0
        self._launch = ""
        self._asked_at: float | None = None
        self._trouble: RelibraError | None = None
        self._is_over = False
        """Whether this launch had an attempt, and another one began."""
        self._refused_since: float | None = None
        self._is_joinable = True

    @property
    def epoch(self) -> int:
        """The attempt that this rank joined last; 0 if none, or if it must ask anew. Any thread may read it."""
        return self._epoch

    @property
    def has_other_launch(self) -> bool:
        """Whether another launch trains the job."""
        return isinstance(self._trouble, AlreadyRunning | StaleEpoch)

    @property
    def is_hopeless(self) -> bool:
        """Whether steps should not wait for this rank to join: its attempt is over, or another launch stays alive."""
        waited_s = 0.0 if self._refused_since is None else self._clock() - self._refused_since
        return self._is_over or waited_s > _TAKEOVER_S

    @property
    def due_in_s(self) -> float | None:
        """In how many seconds the planner should hear from this rank though it has nothing to say; None for never."""
        if not self._is_joinable:
            return None
        interval_s = _OVER_S if self._is_over else _LOOK_S
        if self._joined is not None:
            if self._joined.is_bound and not self._group.leads:
                return None
            interval_s = self._joined.renew_s
        return max(0.0, interval_s - self._elapsed_s())

    def renew(self, client: PlannerClient) -> None:
        """Join the attempt, or show that this rank is alive. Trouble is kept for the next `call`."""
        try:
            self._join(client)
        except RelibraError as error:
            if not self.has_other_launch:
                log.debug("not in an attempt of job %s: %s", self._job_id, error)

    def call(self, client: PlannerClient, method: Callable[[], _T], *, is_repeatable: bool = True) -> _T:
        """Return the result of a call to the planner, which belongs to the attempt of this rank.

        The rank joins a new attempt of its own launch by itself. One begins when the training goes back to an earlier
        step, and when the job is registered again after Redis has lost its data.

        Args:
            client: the client that makes the call.
            method: makes the call.
            is_repeatable: whether to make the call again in a new attempt. What a rank did in the old one stays there.

        Raises:
            RolledBack: the call is about what the training did before it went back to an earlier step.
            StaleEpoch: the attempt of this launch is over.
            AlreadyRunning: the trainer ranks of another launch train the job.
            RelibraError: the rank cannot join an attempt yet, or the call failed.
        """
        if self._joined is None and self._is_joinable:
            self._join_if_due(client)
        try:
            return method()
        except StaleEpoch:
            self._joined = None
            self._join(client)
            if not is_repeatable:
                raise
            return method()

    def rejoin(self) -> None:
        """Ask for the attempt anew before the next call: the launch may have gone back to an earlier step."""
        self._joined = self._asked_at = None
        self._epoch = 0

    def _join_if_due(self, client: PlannerClient) -> None:
        # The session repeats a call after trouble that is retryable, and otherwise not before the next step.
        if self._trouble is not None and self._trouble.retryable and self._elapsed_s() < _ASK_S:
            raise self._trouble.with_traceback(None)  # or it would grow with every call, and hold what these hold
        self._join(client)

    def _elapsed_s(self) -> float:
        return math.inf if self._asked_at is None else self._clock() - self._asked_at

    def _join(self, client: PlannerClient) -> None:
        if self._is_over and self._trouble is not None and self._elapsed_s() < _OVER_S:
            raise self._trouble.with_traceback(None)
        self._asked_at = self._clock()
        group = self._group
        try:
            self._joined = client.join_attempt(
                self._job_id,
                token=group.token,
                is_shared=group.is_shared,
                group=group.name,
                owner=group.owner,
                launch=self._launch,
            )
        except Unsupported:  # a planner without attempts
            self._is_joinable = False
        except RelibraError as error:
            self._note(error)
            raise
        else:
            self._epoch = self._joined.epoch
            self._launch = self._joined.launch if self._joined.is_bound else ""
        if self.has_other_launch:
            log.warning("this launch trains job %s now", self._job_id)
        self._trouble = self._refused_since = None
        self._is_over = False

    def _note(self, error: RelibraError) -> None:
        if self._is_over and not isinstance(error, AlreadyRunning | StaleEpoch):
            return  # a planner that does not answer says nothing about the other launch
        if isinstance(error, AlreadyRunning | StaleEpoch):
            self._joined = None
            if not self._is_over and type(error) is not type(self._trouble):
                log.error("training goes on without plans: %s", error)
        if isinstance(error, AlreadyRunning) and self._refused_since is None:
            self._refused_since = self._clock()
        self._is_over |= bool(self._launch) and isinstance(error, StaleEpoch)
        self._trouble = error
