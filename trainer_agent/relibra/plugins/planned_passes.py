"""The passes of one engine on their way to the planner: all ranks act together, and training never stops for it."""

import atexit
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch.distributed as dist

from relibra.agent.plans.trouble import Trouble
from relibra.errors import RelibraError, StaleEpoch, UnknownJob
from relibra.planning import Cluster, Model, PlanParams
from relibra.plugins.settings import PluginSettings
from relibra.rollout import RolloutReporter
from relibra.steps import RankBatch, RankSchedule, report_rank, submit_step
from relibra.wire.client import PlannerClient
from relibra.wire.launch_end import tell_end

_AGAIN_S = 60.0
"""How long a job that is not registered trains on before it asks for the planner again."""
_CALL_TIMEOUT_S = 10.0


class _Answer(Enum):
    """What became of a call to the planner."""

    TAKEN = "the planner took it"
    REFUSED = "the planner refused it, or the framework's batch could not be read"
    LOST = "the planner is away, or has lost the job, which must be registered again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a rank tells the others about a pass."""

    answer: _Answer = _Answer.TAKEN
    is_reporting: bool = False
    schedule: RankSchedule | None = None


class PlannedPasses:
    """Registers the job and submits its passes. All ranks make its calls together.

    If the planner refuses a pass, the pass is planned from history. If the planner is away or has lost the job, passes
    keep the last plan, and rank 0 registers the job again, at most once a minute. The log says each of them once, and
    when calls work again.

    Args:
        settings: the settings of the plug-in.
        model: the model to register.
        cluster: the cluster to register.
        ep_group: the EP group of this rank.
        ep_rank: its rank in this group.
        is_reporting: whether this rank reports for its data-parallel rank.
        attempt: a text that all ranks of this launch share, and no other launch.
        params: how to plan; by default as the planner does.
    """

    def __init__(
        self,
        settings: PluginSettings,
        model: Model,
        cluster: Cluster,
        *,
        ep_group: int,
        ep_rank: int,
        is_reporting: bool,
        attempt: str,
        params: PlanParams | None = None,
    ) -> None:
        self.settings, self._model, self.cluster, self.attempt = settings, model, cluster, attempt
        self._params, self._seat, self.is_reporting = params, (ep_group, ep_rank), is_reporting
        self._is_first = dist.get_rank() == 0
        self._planner = PlannerClient(settings.planner, timeout_s=_CALL_TIMEOUT_S, attempt=attempt)
        self._reporter = RolloutReporter(settings.planner, settings.job, num_experts=model.num_experts, attempt=attempt)
        self._failed = Trouble("relibra: calls to the planner work again, after %d that failed")
        self.is_registered = False
        self._asked_s = 0.0
        atexit.register(self._tell_end)

    def register(self) -> None:
        """Collective over all ranks: register the job, or note that the planner is away."""
        self._ask()
        self._share()

    def submit(
        self, pass_index: int, batch: Callable[[], RankBatch], *, is_forward_only: bool = False, timeout_s: float
    ) -> bool:
        """Collective over all ranks: report the batch of a pass and submit it; return whether the planner took it.

        Args:
            pass_index: the number of the pass, which is its step at the planner.
            batch: makes the batch of this data-parallel rank. Only reporting ranks call it. If it raises, the pass is
                not submitted.
            is_forward_only: whether no backward follows.
            timeout_s: how long to wait until the planner has stored the report.
        """
        if not self.has_planner():
            return False
        told = self._report(pass_index, batch, timeout_s) if self.is_reporting else _Told()
        everyone = [told] * dist.get_world_size()
        dist.all_gather_object(everyone, told)
        self._note({told.answer for told in everyone})
        schedules = [told.schedule for told in everyone if told.schedule is not None]
        if len(schedules) < sum(told.is_reporting for told in everyone):
            return False

        def submit() -> None:
            submit_step(self._planner, self.settings.job, pass_index, schedules, is_forward_only=is_forward_only)

        return self._submit(pass_index, submit)

    def has_planner(self) -> bool:
        """Collective over all ranks: return whether the job is registered, and register it again when that is due."""
        if not self.is_registered:
            if time.monotonic() - self._asked_s >= _AGAIN_S:
                self._ask()
            self._share()
        return self.is_registered

    def note_lost(self) -> None:
        """Remember that the planner is away, or has lost the job; all ranks heard of it together."""
        self.is_registered = False
        self._asked_s = time.monotonic()

    def close(self, *, goes_on: bool = False) -> None:
        """End the calls to the planner.

        Args:
            goes_on: whether the job goes on, for example because the engine builds another model.
        """
        self._reporter.close()
        if goes_on:
            atexit.unregister(self._tell_end)
        else:
            self._tell_end()
        self._planner.close()

    def _tell_end(self) -> None:
        """Tell the planner that the training ended, on rank 0."""
        atexit.unregister(self._tell_end)
        if self._is_first and self.is_registered:
            tell_end(self._planner, self.settings.job)

    def _report(self, pass_index: int, batch: Callable[[], RankBatch], timeout_s: float) -> _Told:
        schedules = list[RankSchedule]()

        def report() -> None:
            schedules.append(
                report_rank(
                    self._reporter,
                    pass_index,
                    batch(),
                    f"rank-{dist.get_rank()}",
                    ep_group=self._seat[0],
                    ep_rank=self._seat[1],
                    planner=self._planner,
                    timeout_s=timeout_s,
                )
            )

        answer = self._call(pass_index, report)
        return _Told(answer=answer, is_reporting=True, schedule=schedules[0] if schedules else None)

    def _submit(self, pass_index: int, submit: Callable[[], None]) -> bool:
        """Collective over all ranks: submit a pass on rank 0; return whether the planner took it."""
        told = [self._call(pass_index, submit) if self._is_first else _Answer.TAKEN]
        dist.broadcast_object_list(told, src=0)
        self._note(set(told))
        is_taken = told == [_Answer.TAKEN]
        if is_taken:
            self._failed.over()
        return is_taken

    def _call(self, pass_index: int, call: Callable[[], None]) -> _Answer:
        """Make a call to the planner; an error costs balance only."""
        message = "relibra: the planner does not know the micro-batches of pass %d: %s"
        try:
            call()
        except RelibraError as error:
            self._failed.note(type(error).__name__, message, pass_index, error)
            return _Answer.LOST if error.retryable or isinstance(error, UnknownJob | StaleEpoch) else _Answer.REFUSED
        except Exception as error:  # any error: the other ranks wait to hear from this one
            text = f"{type(error).__name__}: {error}"
            self._failed.note(text, message, pass_index, text, level=logging.ERROR, exc_info=True)
            return _Answer.REFUSED
        return _Answer.TAKEN

    def _note(self, answers: set[_Answer]) -> None:
        if _Answer.LOST in answers:
            self.note_lost()

    def _ask(self) -> None:
        """Register the job, on rank 0."""
        self._asked_s = time.monotonic()
        if not self._is_first:
            return
        try:
            self._planner.register_job(self.settings.job, self._model, self.cluster, self._params)
        except RelibraError as error:
            self._failed.note(
                type(error).__name__,
                "relibra: job %s trains without plans, because it could not be registered at %s: %s",
                self.settings.job,
                self.settings.planner,
                error,
            )
        else:
            self._failed.over()
            self.is_registered = True

    def _share(self) -> None:
        told = [self.is_registered]
        dist.broadcast_object_list(told, src=0)
        self.is_registered = told[0]
