"""The planner as the source of a rank's plans: a thread asks it and reports to it, off the training path."""

import logging
import random
import threading
import time

from relibra.agent.config import AgentConfig
from relibra.agent.plans.membership import Membership
from relibra.agent.plans.plan_source import PlanAnswer
from relibra.agent.plans.trouble import Trouble
from relibra.agent.plans.waiting_reports import QueuedReport, WaitingReports
from relibra.errors import RelibraError, RolledBack, TooManyCalls, Unavailable
from relibra.planning import Cause, ExecutionReport
from relibra.planning.plan import Level
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

_POLL_S = 0.5
"""How long one fetch may wait in the planner while training waits for the plan. Reports wait behind this fetch."""
_LOOK_S = 5.0
"""The interval between fetches of a plan that training does not wait for yet. All ranks do this during rollouts."""
_RETRY_S = 0.1
_CROWDED_S = 2.0
"""How long a session waits at least after the planner refused a call because too many are open; each time another time,
up to twice as long, so that the agents beyond the limit do not all ask again at once."""
_AWAY_WAIT_S = 3.0
"""How long a step waits if the planner has not answered since the wait of an earlier step ran out. A planner that is
back hands out plans within this time (promise L2)."""
_CALL_TIMEOUT_S = 5.0
_CLOSE_S = 5.0


_NOTHING = PlanAnswer(
    None, "nobody scheduled the step, and there is no newer plan from earlier steps", Cause.UNSCHEDULED
)


class Session:
    """A plan source that fetches plans from the planner and delivers reports to it, over gRPC.

    The first call creates the thread and the channel, so a session may be built before a fork. The thread retries a
    fetch until it has the plan, another step is wanted, or the session closes. It does not retry after an error that
    is final, or that nobody expects.

    Args:
        config: the settings of the agent.
        token: the token of this launch; by default that of the settings or of this process.
    """

    def __init__(self, config: AgentConfig, token: str | None = None) -> None:
        self._config = config
        self._token = token or config.attempt
        self._membership = Membership(config.job_id)
        self._changed = threading.Condition()
        self._wanted: int | None = None
        self._is_waited_for = False
        self._num_rollbacks = 0
        self._is_rolled_back = False
        self._fetched: dict[int, PlanAnswer] = {}
        self._last_error = "the planner was not asked yet"
        self._reports = WaitingReports()
        self._closing_until: float | None = None
        self._thread: threading.Thread | None = None
        self._client: PlannerClient | None = None
        self._is_unreachable = False
        """Whether the last call to the planner ended with `Unavailable`."""
        self._is_crowded = False
        """Whether the planner refused a call of the last round with `TooManyCalls`."""
        self._is_away = False
        """Whether the wait of a step ran out while the planner was unreachable, and it has not answered since."""
        self._random = random.SystemRandom()  # leaves the state of the training's generator alone, also after a fork
        self._unexpected = Trouble("planning works again, after %d unexpected errors")
        self._refused_plans = Trouble("the planner hands out plans again, after %d refusals")
        self._refused_reports = Trouble("the planner takes reports again, after refusing %d")

    def prefetch(self, step: int) -> None:
        """Start to fetch the plan of `step`, instead of that of any other step."""
        with self._changed:
            if step not in self._fetched and step != self._wanted:
                self._wanted = step
                if not self._is_crowded:  # or the step would not know why nobody asks for its plan
                    self._last_error = "the planner has not answered yet"
            self._wake()

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        """Return the plan of `step`, or why there is none after `timeout_s`.

        If the wait of an earlier step ran out because the planner did not answer, and no call has reached the planner
        since, the wait is short. It takes up to `timeout_s` again as soon as the planner answers.
        """
        began = time.monotonic()
        with self._changed:
            fetched = self._fetched.get(step)
            # The planner may know more of the step now than when it answered the prefetch.
            if fetched is None or fetched.plan is None or fetched.plan.level < Level.MICRO_BATCHES:
                self._fetched.clear()
            self._is_waited_for = True
        self.prefetch(step)
        with self._changed:
            within = f"{timeout_s:g} s"
            if self._is_away and timeout_s > _AWAY_WAIT_S:
                within = (
                    f"{_AWAY_WAIT_S:g} s, instead of {within}, because the planner has been away since an earlier step"
                )
                self._changed.wait_for(lambda: step in self._fetched or not self._is_away, timeout=_AWAY_WAIT_S)
            if not self._is_away or timeout_s <= _AWAY_WAIT_S:
                within = f"{timeout_s:g} s"
                rest_s = timeout_s - (time.monotonic() - began)
                self._changed.wait_for(lambda: step in self._fetched, timeout=rest_s)
            self._is_waited_for = False
            if step not in self._fetched:
                self._is_away |= self._is_unreachable
                if self._wanted == step:
                    self._wanted = None
                return PlanAnswer(None, f"no plan of step {step} within {within}: {self._last_error}", self._lack())
            fetched = self._fetched[step]
            # Training waits for a step once. If the loop restarts with the same step, the plan is fetched again.
            self._fetched.clear()
            return fetched

    def report(self, report: ExecutionReport) -> None:
        """Queue a report. If the planner stays away, the oldest reports are dropped."""
        with self._changed:
            # Until the rank has joined the attempt that begins with a rollback, it does not know its epoch.
            epoch = 0 if self._is_rolled_back else self._membership.epoch
            self._reports.add(report, epoch)
            self._wake()

    def rollback(self, step: int) -> None:
        """Forget what was fetched, and the reports of `step` and later steps; ask for the attempt anew."""
        with self._changed:
            self._num_rollbacks += 1
            self._is_rolled_back = True
            self._wanted = None
            self._fetched.clear()
            self._reports.go_back(step)

    def close(self) -> None:
        """Deliver as many reports as possible within a few seconds, and stop the thread."""
        with self._changed:
            self._wanted = None
            self._closing_until = time.monotonic() + _CLOSE_S
            self._changed.notify_all()
            if self._thread is not None:
                self._changed.wait_for(lambda: not self._reports, timeout=_CLOSE_S)
        if self._client is not None:
            self._client.close()  # ends a fetch that is under way
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_S)

    def _wake(self) -> None:
        if self._thread is None and self._closing_until is None:
            self._thread = threading.Thread(target=self._run, name="relibra-session", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        self._client = PlannerClient(self._config.planner_address, timeout_s=_CALL_TIMEOUT_S, attempt=self._token)
        try:
            while self._serve(self._client):
                pass
        except ValueError:  # gRPC raises it for a call on a closed channel
            if self._closing_until is None:
                raise
        finally:
            self._client.close()

    def _serve(self, client: PlannerClient) -> bool:
        """Wait for something to do, and do it; return False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self._wanted is not None or self._closing_until)
            if self._closing_until and (not self._reports or time.monotonic() > self._closing_until):
                if self._reports:
                    log.warning("closed with %d reports not delivered", len(self._reports))
                return False
            queued = self._reports.first
            step, num_rollbacks = self._wanted, self._num_rollbacks
            if self._is_rolled_back:
                self._is_rolled_back = False
                self._membership.rejoin()
        self._is_crowded = False
        try:
            answered = self._fetch(client, step, num_rollbacks) if step is not None else True
            if queued is not None:
                answered = self._deliver(client, queued) and answered
            self._unexpected.over()
        except Exception as error:  # any error: a thread that ended would leave all later steps without plans
            if self._closing_until is not None:
                raise
            self._give_up(step, queued, error)
            answered = False
        if self._is_crowded or not answered:
            self._pause()
        return True

    def _pause(self) -> None:
        """Wait before the next round of calls, because the last one did not bring what it should."""
        with self._changed:
            if self._is_crowded and self._closing_until is None:
                delay_s = _CROWDED_S * (1 + self._random.random())
                self._changed.wait_for(lambda: self._closing_until is not None, timeout=delay_s)
            elif self._is_urgent():
                self._changed.wait(timeout=_RETRY_S)
            else:
                self._changed.wait_for(self._is_urgent, timeout=_LOOK_S)

    def _give_up(self, step: int | None, queued: QueuedReport | None, error: Exception) -> None:
        """Log an error that nobody expects, and drop what probably caused it: the step, or else the report."""
        text = f"{type(error).__name__}: {error}"
        message = "an unexpected error while asking the planner or reporting to it: %s"
        self._unexpected.note(text, message, text, level=logging.ERROR, exc_info=True)
        with self._changed:
            if step is not None:
                if self._wanted == step:
                    self._wanted = None
                    self._fetched = {step: PlanAnswer(None, f"an unexpected error in this rank's session: {text}")}
            elif queued is not None:
                self._reports.give_up(queued)
            self._changed.notify_all()

    def _note_reached(self, error: RelibraError | None) -> None:
        """Remember whether the planner answered a call, which raised `error`."""
        with self._changed:
            self._is_unreachable = isinstance(error, Unavailable)
            self._is_away &= self._is_unreachable
            self._is_crowded |= isinstance(error, TooManyCalls)
            self._changed.notify_all()

    def _is_urgent(self) -> bool:
        return bool(self._is_waited_for or self._reports or self._closing_until)

    def _deliver(self, client: PlannerClient, queued: QueuedReport) -> bool:
        """Send one report; return False if it should be sent again."""
        report = queued.report
        try:
            self._membership.call(
                client,
                lambda: client.report_execution(self._config.job_id, report, epoch=queued.epoch),
                is_repeatable=False,
            )
        except RolledBack as error:
            self._note_reached(error)
            log.info("the report of step %d, %s, is not needed any more: %s", report.step, report.phase, error)
        except RelibraError as error:
            self._note_reached(error)
            if error.retryable:
                return False
            if not self._membership.has_other_launch:  # which the log has already
                self._refused_reports.note(
                    type(error).__name__,
                    "the planner refused the report of step %d, %s: %s",
                    report.step,
                    report.phase,
                    error,
                )
        else:
            self._note_reached(None)
            self._refused_reports.over()
        with self._changed:
            self._reports.is_answered(queued)
            self._changed.notify_all()
        return True

    def _fetch(self, client: PlannerClient, step: int, num_rollbacks: int) -> bool:
        """Fetch a plan once; return False if the planner answered at once and has no plan.

        A plan is dropped if the training has gone back since it had done so `num_rollbacks` times.
        """
        asked = time.monotonic()
        fetched: PlanAnswer | None = None
        reason = ""
        try:
            plan = self._membership.call(
                client,
                lambda: client.fetch_plan(self._config.job_id, step, self._config.model, wait_s=self._poll_s()),
            )
            fetched = _NOTHING if plan is None else PlanAnswer(plan, plan.reason)
            self._note_reached(None)
            self._refused_plans.over()
        except RelibraError as error:
            self._note_reached(error)
            reason = str(error)
            if not error.retryable:
                if not self._membership.has_other_launch:  # which the log has already
                    self._refused_plans.note(type(error).__name__, "no plan of step %d: %s", step, error)
                fetched = PlanAnswer(None, reason, self._lack())
        with self._changed:
            if reason:
                self._last_error = reason
            # A plan that was on its way when the training went back is not the one that is wanted now.
            if fetched is not None and self._wanted == step and self._num_rollbacks == num_rollbacks:
                self._wanted = None
                self._fetched = {step: fetched}
                self._changed.notify_all()
        return fetched is not None or time.monotonic() - asked >= _RETRY_S

    def _lack(self) -> Cause:
        return Cause.OTHER_LAUNCH if self._membership.has_other_launch else Cause.LATE

    def _poll_s(self) -> float:
        with self._changed:
            return _POLL_S if self._is_waited_for and not self._reports else 0.0
