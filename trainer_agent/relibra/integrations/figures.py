"""The figures of a job's steps, for the tracker that its users watch anyway.

    from relibra.integrations.figures import StepFigures

    figures = StepFigures("my-job")
    for step, values in figures.take():  # after a training step, in the process that has the run
        wandb.log(values | {"relibra/step": step}, commit=False)

Ranks know their own part of a step only, so the status service is asked. What goes wrong is logged as a warning, once,
and training goes on.
"""

import logging
import os

from relibra.errors import RelibraError
from relibra.wire.status_service import DEFAULT_URL, URL_VARIABLE, StatusService

logger = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_NUM_STEPS = 100
"""The newest steps that are asked for: so many may have ended since the last call."""


class StepFigures:
    """The figures of the steps of one job, each step once."""

    def __init__(self, job_id: str, *, url: str | None = None) -> None:
        """Prepare to ask about a job, which may be registered later.

        Args:
            job_id: the job.
            url: the status service; by default `RELIBRA_STATUS_URL`, else http://127.0.0.1:7421.

        Raises:
            InvalidInput: `url` is no HTTP URL.
        """
        address = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self._service, self._job_id = StatusService(address, timeout_s=_TIMEOUT_S), job_id
        self._attempt, self._last_step = 0, -1
        self._is_in_trouble = False

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """Return the steps that have ended since the last call, with their figures under `relibra/...`.

        The names are those of `/v1/jobs/<job>/history`. A step has ended when all ranks have reported its update or
        that of a later step. A service that does not answer costs 2 s.
        """
        try:
            attempt = self._service.get("v1", "jobs", self._job_id)["attempt"]
            points = self._service.get(
                "v1", "jobs", self._job_id, "history", attempt=attempt["number"], limit=_NUM_STEPS
            )
        except RelibraError as error:
            if not self._is_in_trouble:
                logger.warning("there are no figures of relibra for now: %s", error)
            self._is_in_trouble = True
            return []
        self._is_in_trouble = False
        if attempt["number"] != self._attempt:
            # The steps before the one that a training went back to were taken.
            back_to = attempt["rolled_back_to"]
            self._attempt, self._last_step = attempt["number"], -1 if back_to is None else back_to - 1
        last_complete = max((point["step"] for point in points if point["is_complete"]), default=-1)
        ended = [point for point in points if self._last_step < point["step"] <= last_complete]
        self._last_step = max(self._last_step, last_complete)
        return [
            (
                point["step"],
                {
                    f"relibra/{name}": value
                    for name, value in point.items()
                    if name != "step" and type(value) in (int, float)  # not bool
                },
            )
            for point in ended
        ]
