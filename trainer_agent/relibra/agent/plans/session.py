"""The planner as one rank's plan source: a thread fetches ahead and reports behind, so that training goes on."""

import logging
import threading
import time
from collections import deque
from typing import Protocol

from relibra.agent.config import AgentConfig
from relibra.errors import RelibraError
from relibra.planning import ExecutionReport, RankPlan
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

_POLL_S = 0.5
"""How long the planner may hold open one fetch of a plan that is waited for; a report waits behind it so long."""
_LOOK_S = 5.0
"""How often a plan that nobody waits for yet is asked for: all ranks do so while rollouts last, for minutes."""
_RETRY_S = 0.1
_CALL_TIMEOUT_S = 5.0
_MAX_PENDING_REPORTS = 256
_CLOSE_S = 5.0

Fetched = tuple[RankPlan | None, str]


class PlanSource(Protocol):
    """One rank's source of plans. No method may block beyond what its docstring says; none raises."""

    def prefetch(self, step: int) -> None:
        """Start getting the plan of `step`; returns at once."""

    def wait(self, step: int, timeout_s: float) -> tuple[RankPlan | None, str]:
        """Return the plan of `step`, or None with the reason after at most `timeout_s`."""

    def report(self, report: ExecutionReport) -> None:
        """Hand over a report; returns at once, and the report may get lost."""

    def close(self) -> None:
        """Stop, within a few seconds."""


class Session:
    """Fetches plans and delivers reports over gRPC.

    The thread and the channel are created with the first call, hence a session may be built before a fork. A planner
    that is away is asked again until the plan is there, another step is wanted, or the session closes; a step that the
    planner refuses for good is not asked for again.
    """

    def __init__(self, config: AgentConfig, ep_rank: int) -> None:
        self._config, self._ep_rank = config, ep_rank
        self._changed = threading.Condition()
        self._wanted: int | None = None
        self._is_waited_for = False
        self._fetched: dict[int, Fetched] = {}
        self._last_error = "the planner was not asked yet"
        self._reports: deque[ExecutionReport] = deque()
        self._closing_until: float | None = None
        self._thread: threading.Thread | None = None
        self._client: PlannerClient | None = None

    def prefetch(self, step: int) -> None:
        """Start fetching the plan of `step`, instead of any other."""
        with self._changed:
            if step not in self._fetched and step != self._wanted:
                self._wanted = step
                self._last_error = "the planner has not answered yet"
            self._wake()

    def wait(self, step: int, timeout_s: float) -> Fetched:
        """Return the plan of `step`, or None and why there is none after `timeout_s`."""
        with self._changed:
            plan, _ = self._fetched.get(step, (None, ""))
            if plan is None:  # what was refused in advance may be granted by now
                self._fetched.clear()
            self._is_waited_for = True
        self.prefetch(step)
        with self._changed:
            arrived = self._changed.wait_for(lambda: step in self._fetched, timeout=timeout_s)
            self._is_waited_for = False
            if not arrived:
                if self._wanted == step:
                    self._wanted = None
                return None, f"no plan of step {step} within {timeout_s:g} s: {self._last_error}"
            fetched = self._fetched[step]
            # A step is waited for once; what a crash and restart of the loop needs again is fetched again.
            self._fetched.clear()
            return fetched

    def report(self, report: ExecutionReport) -> None:
        """Queue a report; when the planner is away for long, the oldest are dropped."""
        with self._changed:
            if len(self._reports) >= _MAX_PENDING_REPORTS:
                dropped = self._reports.popleft()
                log.warning("dropped the report of step %d, %s: the planner is away", dropped.step, dropped.phase)
            self._reports.append(report)
            self._wake()

    def close(self) -> None:
        """Deliver the reports that can be delivered within a few seconds, and stop the thread."""
        with self._changed:
            self._wanted = None
            self._closing_until = time.monotonic() + _CLOSE_S
            self._changed.notify_all()
            if self._thread is not None:
                self._changed.wait_for(lambda: not self._reports, timeout=_CLOSE_S)
        if self._client is not None:
            self._client.close()  # ends a fetch that hangs
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_S)

    def _wake(self) -> None:
        if self._thread is None and self._closing_until is None:
            self._thread = threading.Thread(target=self._run, name="relibra-session", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        self._client = PlannerClient(self._config.planner_address, timeout_s=_CALL_TIMEOUT_S)
        try:
            while self._serve(self._client):
                pass
        except ValueError:  # what gRPC raises for a call on a channel that was closed meanwhile
            if self._closing_until is None:
                raise
        finally:
            self._client.close()

    def _serve(self, client: PlannerClient) -> bool:
        """Do what is due, or wait for it; return False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self._wanted is not None or self._closing_until)
            if self._closing_until and (not self._reports or time.monotonic() > self._closing_until):
                if self._reports:
                    log.warning("%d reports were not delivered", len(self._reports))
                return False
            report = self._reports[0] if self._reports else None
            step = self._wanted
        answered = self._fetch(client, step) if step is not None else True
        if report is not None:
            answered = self._deliver(client, report) and answered
        if not answered:
            with self._changed:
                if self._is_urgent():
                    self._changed.wait(timeout=_RETRY_S)
                else:
                    self._changed.wait_for(self._is_urgent, timeout=_LOOK_S)
        return True

    def _is_urgent(self) -> bool:
        return bool(self._is_waited_for or self._reports or self._closing_until)

    def _deliver(self, client: PlannerClient, report: ExecutionReport) -> bool:
        """Send one report; return False where it is worth trying again."""
        try:
            client.report_execution(self._config.job_id, report)
        except RelibraError as error:
            if error.retryable:
                return False
            log.warning("the planner refused the report of step %d, %s: %s", report.step, report.phase, error)
        with self._changed:
            if self._reports and self._reports[0] is report:
                self._reports.popleft()
                self._changed.notify_all()
        return True

    def _fetch(self, client: PlannerClient, step: int) -> bool:
        """Ask once for a plan; return False where the planner did not even hold the question open."""
        asked = time.monotonic()
        fetched: Fetched | None = None
        reason = ""
        try:
            plan = client.fetch_plan(
                self._config.job_id, step, self._config.model, self._ep_rank, wait_s=self._poll_s()
            )
            fetched = plan, plan.reason
        except RelibraError as error:
            reason = str(error)
            if not error.retryable:
                log.warning("no plan of step %d: %s", step, error)
                fetched = None, reason
        with self._changed:
            if reason:
                self._last_error = reason
            if fetched is not None and self._wanted == step:
                self._wanted = None
                self._fetched = {step: fetched}
                self._changed.notify_all()
        return fetched is not None or time.monotonic() - asked >= _RETRY_S

    def _poll_s(self) -> float:
        with self._changed:
            return _POLL_S if self._is_waited_for and not self._reports else 0.0
