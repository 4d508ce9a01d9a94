"""The figures of a job in the run that its users watch anyway: Weights & Biases, MLflow or TensorBoard.

    from relibra.integrations.tracking import track

    track("my-job")                 # after wandb.init or mlflow.start_run, in the process that has the run
    track("my-job", run=writer)     # a SummaryWriter of TensorBoard

Ranks know their own part of a step only, so a thread asks the status service. It logs each step once, when all ranks
have reported it or a later step has ended, under `relibra/...` with the names of `/v1/jobs/<job>/history`. Training
neither waits for the thread nor fails with it: what goes wrong is logged as a warning.
"""

import atexit
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from relibra.errors import RelibraError, UnknownJob
from relibra.integrations.tracked_runs import TrackedRun, active_runs, tracked_run
from relibra.wire.status_service import DEFAULT_URL, URL_VARIABLE, StatusService

logger = logging.getLogger(__name__)

_POLL_INTERVAL_S = 15.0
_USUAL_STEPS, _MOST_STEPS = 20, 1000
"""Steps that are asked for: usually, and after an outage."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to where a job is logged."""

    attempt: int = 0
    """The number of the attempt; 0 before the job is registered."""
    step: int = -1
    """The last step of the attempt that is logged, or that was over before logging began."""

    def moved_to(self, attempt: Mapping[str, Any]) -> "Mark":
        """Return the mark in the current attempt, which may be a later one than that of the mark."""
        if attempt["number"] == self.attempt:
            return self
        # The steps before that of an attempt that went back are logged.
        back_to = attempt["rolled_back_to"]
        return Mark(attempt["number"], -1 if back_to is None else back_to - 1)


def ended_steps(points: Sequence[Mapping[str, Any]], after: int) -> list[Mapping[str, Any]]:
    """Return the points above step `after` whose steps have ended, in order.

    A step has ended when all ranks have reported its update or that of a later step: nothing more will come of it.
    """
    last = max((point["step"] for point in points if point["is_complete"]), default=-1)
    return [point for point in points if after < point["step"] <= last]


class Tracking:
    """Logs the steps of one job until it is closed. `track` makes it; it closes itself when the process ends."""

    def __init__(self, service: StatusService, job_id: str, runs: Sequence[TrackedRun], poll_interval_s: float) -> None:
        self._service, self._job_id, self._runs = service, job_id, runs
        self._poll_interval_s = poll_interval_s
        self._mark: Mark | None = None
        self._waiting: list[Mapping[str, Any]] = []
        """Steps that have ended and are not logged, because a run takes one at a time."""
        self._trouble: type[Exception] | None = None
        """The kind of error that was logged last; None while all is well."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relibra-tracking", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Log the steps that have ended meanwhile, and stop. A service that does not answer costs at most 10 s."""
        atexit.unregister(self.close)
        if not self._is_closed.is_set():
            self._is_closed.set()
            self._thread.join()

    def _run(self) -> None:
        while True:
            is_last = self._is_closed.wait(0 if self._mark is None and self._trouble is None else self._poll_interval_s)
            try:
                self._read()
                self._tell_of_recovery()
            except UnknownJob as error:
                self._mark = Mark()
                self._tell_once(error, f"job {self._job_id!r} is not registered yet")
            except (RelibraError, KeyError) as error:
                self._tell_once(
                    error, f"an older service has no {error}" if isinstance(error, KeyError) else str(error)
                )
            self._log(is_last=is_last)
            if is_last:
                return

    def _read(self) -> None:
        """Add the steps that have ended since to `_waiting`; the first time, only note which these are."""
        attempt = self._service.get("v1", "jobs", self._job_id)["attempt"]
        if self._mark is None:
            over = ended_steps(self._history(attempt["number"], _USUAL_STEPS), -1)
            self._mark = Mark(attempt["number"], over[-1]["step"] if over else -1)
            logger.info("figures of job %s are logged from step %d on", self._job_id, self._mark.step + 1)
            return
        mark = self._mark.moved_to(attempt)
        points = self._history(mark.attempt, _USUAL_STEPS)
        if len(points) == _USUAL_STEPS and points[0]["step"] > mark.step + 1:
            points = self._history(mark.attempt, _MOST_STEPS)
        steps = ended_steps(points, mark.step)
        self._waiting += steps
        self._mark = Mark(mark.attempt, steps[-1]["step"]) if steps else mark

    def _history(self, attempt: int, limit: int) -> list[Mapping[str, Any]]:
        points: list[Mapping[str, Any]] = self._service.get(
            "v1", "jobs", self._job_id, "history", attempt=attempt, limit=limit
        )
        return points

    def _log(self, *, is_last: bool) -> None:
        while self._waiting and (is_last or all(map(_is_free, self._runs))):
            point = self._waiting.pop(0)
            figures = {
                f"relibra/{name}": value
                for name, value in point.items()
                if name != "step" and type(value) in (int, float)  # not bool
            }
            for run in self._runs:
                try:
                    run.log(point["step"], figures, is_last=is_last)
                except Exception as error:  # whatever a tracker raises must not end the thread
                    logger.warning("step %d of job %s is not in %s: %s", point["step"], self._job_id, run.name, error)

    def _tell_once(self, error: Exception, text: str) -> None:
        """Log an error unless one of its kind was logged last; an outage has many texts."""
        if self._trouble is not type(error):
            logger.warning("figures of relibra are not logged for now: %s", text)
        self._trouble = type(error)

    def _tell_of_recovery(self) -> None:
        if self._trouble is not None:
            logger.info("figures of relibra are logged again")
        self._trouble = None


def _is_free(run: TrackedRun) -> bool:
    """Return whether a run takes a step now. One that cannot tell is given the step, and then says what is wrong."""
    try:
        return run.is_free()
    except Exception:  # whatever a tracker raises must not end the thread
        return True


def track(
    job_id: str, *, run: object = None, url: str | None = None, poll_interval_s: float = _POLL_INTERVAL_S
) -> Tracking:
    """Log the figures of a job into a run, from now on, and return at once. Call it in one process of the training.

    Args:
        job_id: the job; it may be registered later.
        run: a W&B run, an MLflow run or a TensorBoard `SummaryWriter`; by default the active runs of W&B and MLflow.
        url: the status service; by default `RELIBRA_STATUS_URL`, else http://127.0.0.1:7421.
        poll_interval_s: how often the service is asked.

    Raises:
        InvalidInput: no run is active, `run` is of another kind, or `url` is no HTTP URL.
    """
    runs = active_runs() if run is None else [tracked_run(run)]
    service = StatusService(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    return Tracking(service, job_id, runs, poll_interval_s)
