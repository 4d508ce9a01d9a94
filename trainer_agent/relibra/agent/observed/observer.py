"""One rank of a job that only observes: its counts become reports at the end of every step."""

import atexit
import logging
import threading
from collections.abc import Callable

import numpy as np

from relibra.agent.config import AgentConfig
from relibra.agent.groups import Seat
from relibra.agent.observed.counter import ChoiceCounter
from relibra.agent.plans.plan_source import PlanSource
from relibra.errors import RelibraError
from relibra.planning import Cause, ExecutionReport, Phase
from relibra.planning.execution import sample_micro_batches
from relibra.planning.load import narrow_counts
from relibra.wire.client import PlannerClient
from relibra.wire.launch_end import tell_end

log = logging.getLogger(__name__)

_END_TIMEOUT_S = 2.0
_AGAIN_S = 60.0
"""How long a job that could not be registered waits before it tries again."""


class Observer:
    """Reports what the routers of one rank choose, step by step. No call is collective or waits for the planner.

    Args:
        counter: counts the choices.
        reports: takes the reports.
        seat: this rank's place among the EP groups of the job.
    """

    def __init__(self, counter: ChoiceCounter, reports: PlanSource, seat: Seat) -> None:
        self._counter, self._reports, self._seat = counter, reports, seat
        self._undo: list[Callable[[], None]] = [counter.close, reports.close]
        self._step = 0

    def on_close(self, undo: Callable[[], None]) -> None:
        """Call `undo` when observing ends."""
        self._undo.insert(0, undo)

    def mark(self) -> None:
        """Mark that the step has come this far. `observe` calls it before the optimizer steps."""
        self._counter.mark()

    def end_step(self) -> None:
        """End a step, after the optimizer stepped: report what was counted since the last call, if anything was."""
        load_MLE, elapsed_s = self._counter.take()
        if not len(load_MLE):
            return
        self._reports.report(
            ExecutionReport(
                step=self._step,
                phase=Phase.UPDATE,
                ep_group=self._seat.ep_group,
                ep_rank=self._seat.ep_rank,
                applied=None,
                causes=(Cause.OBSERVING,),
                reason="the job only observes",
                realised_load_ML=load_MLE.sum(axis=-1),
                expert_load_NLE=narrow_counts(load_MLE[sample_micro_batches(len(load_MLE))].astype(np.uint32)),
                duration_s=elapsed_s,
            )
        )
        self._step += 1

    def close(self) -> None:
        """Take all hooks away, and deliver what is left of the reports."""
        for undo in self._undo:
            undo()


def register(config: AgentConfig) -> Callable[[], None]:
    """Register a job. If the planner is away, a thread goes on trying; return the function that ends job and thread."""
    planner, is_over = PlannerClient(config.planner_address, attempt=config.attempt), threading.Event()

    def is_registered() -> bool:
        try:
            planner.register_job(config.job_id, config.model, config.cluster)
        except RelibraError as error:
            log.warning("relibra: job %s is observed, but could not be registered: %s", config.job_id, error)
            return False
        return True

    def keep_trying() -> None:
        while not is_over.wait(_AGAIN_S) and not is_registered():
            pass
        planner.close()

    def end() -> None:
        atexit.unregister(end)
        is_over.set()
        with PlannerClient(config.planner_address, timeout_s=_END_TIMEOUT_S, attempt=config.attempt) as own:
            tell_end(own, config.job_id)

    atexit.register(end)
    if is_registered():
        planner.close()
    else:
        threading.Thread(target=keep_trying, name="relibra-register", daemon=True).start()
    return end
