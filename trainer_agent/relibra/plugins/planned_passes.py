"""The passes of one engine on their way to the planner: all ranks act together, and training never stops for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from relibra.agent.plans.trouble import Trouble
from relibra.errors import RelibraError
from relibra.integrations import RankBatch, RankSchedule, TrainerLayout, report_rank, submit_forecast, submit_step
from relibra.planning import Cluster, Model
from relibra.plugins.settings import PluginSettings
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

_AGAIN_S = 60.0
"""How long a job whose planner is away trains on before it asks for the planner again."""
_CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a rank tells the others about a pass."""

    schedule: RankSchedule | None = None
    is_away: bool = False
    """Whether the planner did not answer this rank."""


class PlannedPasses:
    """Registers the job and has its passes planned. All ranks make its calls together.

    If the planner is away or refuses, the pass has no plan, training goes on, and the log says so once. Rank 0 asks for
    the planner again every minute, and the log says when planning works again.

    Args:
        settings: the settings of the plug-in.
        model: the model to register.
        cluster: the cluster to register.
        trainer: how the framework assigns tokens to ranks.
        data_rank: the data-parallel rank of this rank.
        is_reporting: whether this rank reports for its data-parallel rank.
        attempt: a text that all ranks of this launch share, and no other launch.
    """

    def __init__(
        self,
        settings: PluginSettings,
        model: Model,
        cluster: Cluster,
        trainer: TrainerLayout,
        *,
        data_rank: int,
        is_reporting: bool,
        attempt: str,
    ) -> None:
        self._settings, self._model, self._cluster, self._trainer = settings, model, cluster, trainer
        self._data_rank, self.is_reporting = data_rank, is_reporting
        self._is_first = dist.get_rank() == 0
        self._planner = PlannerClient(settings.planner, timeout_s=_CALL_TIMEOUT_S, attempt=attempt)
        self._reporter = RolloutReporter(settings.planner, settings.job, num_experts=model.num_experts, attempt=attempt)
        self._trouble = Trouble("relibra: passes are planned again, after %d without a plan")
        self._is_registered = False
        self._asked_s = 0.0

    def register(self) -> None:
        """Collective over all ranks: register the job, or note that the planner is away."""
        self._ask()
        self._share()

    def plan(self, pass_index: int, batch: Callable[[], RankBatch]) -> bool:
        """Collective over all ranks: report the batch of a pass and submit it; return whether its plan follows.

        Args:
            pass_index: the number of the pass, which is its step at the planner.
            batch: makes the batch of this data-parallel rank. Only reporting ranks call it.
        """
        if not self._is_registered:
            self._ask_again()
            return False
        told = self._reported(pass_index, batch) if self.is_reporting else _Told()
        everyone = [told] * dist.get_world_size()
        dist.all_gather_object(everyone, told)
        schedules = [each.schedule for each in everyone if each.schedule is not None]
        if any(each.is_away for each in everyone):
            self._is_registered = False
            self._asked_s = time.monotonic()
        if len(schedules) < self._trainer.ranks.data:
            return False
        if self._is_first:
            self._call(pass_index, lambda: submit_step(self._planner, self._settings.job, pass_index, schedules))
        return True

    def forecast(self, pass_index: int, num_micro_batches: int) -> bool:
        """Collective over all ranks: have a pass planned whose routing nobody knows yet."""
        if not self._is_registered:
            self._ask_again()
            return False
        if self._is_first:
            job = self._settings.job
            self._call(
                pass_index,
                lambda: submit_forecast(self._planner, job, pass_index, num_micro_batches, self._cluster),
            )
        return True

    def note_routed(self, pass_index: int, counts_LE: NDArray[np.uint32]) -> None:
        """Report how this rank routed the tokens of a pass, for the forecasts of later passes.

        Args:
            pass_index: the number of the pass.
            counts_LE: the tokens of every layer and expert.
        """
        if self._is_registered and counts_LE.any():
            num_rows = int(counts_LE.sum(axis=1).max()) // self._model.top_k
            name = f"rank-{dist.get_rank()}"
            self._call(pass_index, lambda: self._reporter.report_counts(pass_index, name, counts_LE, num_rows))

    def _reported(self, pass_index: int, batch: Callable[[], RankBatch]) -> _Told:
        schedules = list[RankSchedule]()

        def report() -> None:
            schedules.append(
                report_rank(
                    self._reporter,
                    pass_index,
                    batch(),
                    self._data_rank,
                    self._trainer,
                    timeout_s=self._settings.plan_timeout_s,
                )
            )

        error = self._call(pass_index, report)
        return _Told(schedule=schedules[0] if schedules else None, is_away=error is not None and error.retryable)

    def _call(self, pass_index: int, call: Callable[[], None]) -> RelibraError | None:
        """Make a call to the planner; return its error, which costs balance only."""
        try:
            call()
        except RelibraError as error:
            self._trouble.met(type(error).__name__, "relibra: pass %d trains without a plan: %s", pass_index, error)
            return error
        self._trouble.over()
        return None

    def _ask(self) -> None:
        """Register the job, on rank 0."""
        self._asked_s = time.monotonic()
        if not self._is_first:
            return
        try:
            self._planner.register_job(self._settings.job, self._model, self._cluster)
        except RelibraError as error:
            self._trouble.met(
                type(error).__name__,
                "relibra: job %s trains without plans, because it could not be registered at %s: %s",
                self._settings.job,
                self._settings.planner,
                error,
            )
        else:
            self._is_registered = True
            self._trouble.over()

    def _ask_again(self) -> None:
        if time.monotonic() - self._asked_s >= _AGAIN_S:
            self._ask()
        self._share()

    def _share(self) -> None:
        told = [self._is_registered]
        dist.broadcast_object_list(told, src=0)
        self._is_registered = told[0]
