"""`BackgroundReporting`: reports and submits steps in a thread, while the training loop goes on."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import ParamSpec, Self

from relibra.errors import LimitExceeded, Unavailable

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")


class BackgroundReporting:
    """Runs the calls that report steps in one thread, in their order. No error is lost.

        reporting = BackgroundReporting()
        reporting.start(plan_rollout, rollout_id, rollout_data_of_ranks)   # returns at once

    A call that fails is logged, once per class of error, and the next `start`, `wait` or `close` raises its error. The
    arguments of a call must not change until it has ended.
    """

    def __init__(self, max_unfinished: int = 2) -> None:
        """Prepare to run calls; the arguments of at most `max_unfinished` calls are held at once."""
        self._max_unfinished = max_unfinished
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="relibra-reporting")
        self._lock = threading.Lock()
        self._started: list[Future[None]] = []
        """The calls that had not ended when the last one was started, and that one."""
        self._error: Exception | None = None
        self._logged: set[type[Exception]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        self._pool.shutdown()
        if exc_type is None:
            self._raise()

    def start(self, report: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Run `report` after the calls that were started before.

        Raises:
            LimitExceeded: `max_unfinished` earlier calls have not ended. This one was not started: no plans.
            Exception: the first error of earlier calls; this call was started all the same.
        """
        with self._lock:
            self._started = [each for each in self._started if not each.done()]
            if len(self._started) >= self._max_unfinished:
                raise LimitExceeded(
                    f"the reports of {self._max_unfinished} earlier calls have not ended, so this call was not "
                    "started: check that the planner answers, or report less often"
                )
            # Taken before the call runs: its own error belongs to the next call of start.
            error, self._error = self._error, None
            self._started.append(self._pool.submit(self._run, report, *args, **kwargs))
        if error is not None:
            raise error

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait until all calls have ended.

        Raises:
            Unavailable: calls have not ended after `timeout_s`; they go on.
            Exception: the first error of earlier calls.
        """
        with self._lock:
            started = list(self._started)
        if wait_for(started, timeout_s).not_done:
            raise Unavailable(f"reports have not ended within {timeout_s:g} s: check that the planner answers")
        self._raise()

    def close(self) -> None:
        """Wait until all calls have ended, and take no more.

        Raises:
            Exception: the first error of earlier calls.
        """
        self.__exit__(None)

    def _run(self, report: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            report(*args, **kwargs)
        except Exception as error:
            with self._lock:
                self._error = self._error or error
                is_first = type(error) not in self._logged
                self._logged.add(type(error))
            if is_first:
                logger.warning(
                    "a report in the background failed, so its steps have no plans: %s. Further errors of this kind "
                    "are not logged; the next call of start, wait or close raises them",
                    error,
                )

    def _raise(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error
