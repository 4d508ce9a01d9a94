"""What the driver of a job asks its training processes: they know the job's planner, its layout and its passes."""

import logging
import os
from dataclasses import dataclass, field

import torch.distributed as dist

from relibra.planning import Cluster
from relibra.plugins.attached_job import parallel_layout
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.settings import EMBEDDED, PluginSettings
from relibra.routing import ModelLayers
from relibra.steps.parallel_layout import ParallelLayout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedJob:
    """A job as its training processes have registered it."""

    settings: PluginSettings
    """With the address of the planner, also of one that the job has started for itself."""
    token: str | None = field(repr=False)
    """What callers of a planner show that the job has started for itself, if they need it."""
    attempt: str
    layers: ModelLayers
    ranks: ParallelLayout
    cluster: Cluster
    next_step: int
    """The step at the planner of the next pass."""
    is_registered: bool
    """Whether the planner has the job. If not, rank 0 asks for the planner again by itself."""


class TrainingProcess:
    """Answers the driver in a training process, and tells if no driver asks.

    Args:
        settings: the settings of the plug-in, as the user gave them.
        passes: the passes of the engine.
    """

    current: "TrainingProcess | None" = None
    """That of the engine that trains in this process."""

    def __init__(self, settings: PluginSettings, passes: BalancedPasses) -> None:
        self._passes = passes
        self._token = os.environ.get("RELIBRA_TOKEN") if settings.planner == EMBEDDED else None
        self._is_awaited = settings.pack and dist.get_rank() == 0
        TrainingProcess.current = self

    def answer(self) -> TrainedJob:
        """Return what the driver wants to know."""
        self._is_awaited = False
        planned = self._passes.planned
        return TrainedJob(
            settings=planned.settings,
            token=self._token,
            attempt=planned.attempt,
            layers=self._passes.layers,
            ranks=parallel_layout(),
            cluster=planned.cluster,
            next_step=self._passes.next_index,
            is_registered=planned.is_registered,
        )

    def note_pass(self) -> None:
        """Say it once if a pass with the routing of a rollout runs, and the driver has asked for no ranks before."""
        if self._is_awaited:
            self._is_awaited = False
            log.warning(
                "relibra: pack is set, but verl's driver has not asked which data-parallel rank gets which sequence, "
                "so verl's own choice stays. Is trainer.use_v1 on, and has the driver the setting too?"
            )


def trained_job(worker: object) -> TrainedJob | None:
    """Return the job that this process trains, None if it has no engine of relibra. Ray calls it for the driver.

    Args:
        worker: the actor whose process this is.
    """
    return TrainingProcess.current.answer() if TrainingProcess.current is not None else None
