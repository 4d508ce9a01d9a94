"""The rollout manager of slime or miles with packing: relibra chooses the micro-batch and the rank of every sample.

The manager is an actor of Ray, and its driver has no hook for relibra there. The first training process has a handle of
the manager, so it sends these functions there, and after every rollout the step that comes next.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from relibra.agent.plans.trouble import Trouble
from relibra.errors import InvalidInput, RelibraError
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.slime.rollout_schedule import RolloutSchedule
from relibra.rollout import RolloutReporter
from relibra.steps.packing import Dealt, PackableStep, pack_step
from relibra.steps.parallel_layout import ParallelLayout
from relibra.wire.client import PlannerClient

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""How long each training step of a rollout waits for the planner."""
_NAME = "relibra_packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingJob(RolloutJob):
    """A job as its training processes have registered it, with what packing needs to know of them."""

    ranks: ParallelLayout
    num_other_steps: int = 0
    """The steps in which other models run over each rollout but the first, before the actor does."""


class RolloutPacking:
    """Packs the rollouts of a manager. Whatever goes wrong, a rollout keeps the framework's own schedule.

    Args:
        job: the job.
    """

    def __init__(self, job: PackingJob) -> None:
        self._clients: tuple[PlannerClient, RolloutReporter] | None = None
        self._unpacked = Trouble("relibra: rollouts are packed again, after %d with the framework's own schedule")
        self.data: Mapping[str, Any] = {}
        """The data of the rollout that is dealt now."""
        self.rollout_id = 0
        self.follow(job)

    def follow(self, job: PackingJob) -> None:
        """Pack for training processes that have started, whose first rollout is the next one."""
        for client in self._clients or ():
            client.close()
        self._job, self._has_said, self._clients = job, False, None
        self._told: tuple[int, int] | None = None

    def tell(self, rollout_id: int, next_step: int) -> None:
        """Note which step at the planner the actor's passes begin with after the updates of a rollout."""
        self._told = (rollout_id + 1, next_step)

    def pack(self, args: Any, cp_size: int, length_S: Sequence[int], own: RolloutSchedule) -> RolloutSchedule:
        """Return the schedule of a rollout, packed if the planner agrees.

        Args:
            args: the arguments of the job.
            cp_size: the context-parallel ranks of a data-parallel rank.
            length_S: the tokens of every sample of the rollout.
            own: the schedule of the framework.
        """
        try:
            routing = self.data.get("rollout_routed_experts")
            if routing is None:
                raise InvalidInput.of("rollout_routed_experts", expected="the routing of every sample", got="none")
            first_step = self._first_step(len(own.num_microbatches))
            packed_steps = [
                self._packed_step(first_step + index, dealt, routing, length_S, room_of(args, cp_size))
                for index, dealt in enumerate(own.steps())
            ]
        except Exception as error:  # any error: training goes on without packing
            is_known = isinstance(error, RelibraError)
            self._unpacked.note(
                type(error).__name__,
                "relibra: rollout %d keeps the framework's own schedule: %s",
                self.rollout_id,
                error,
                exc_info=not is_known,
            )
            return own
        self._unpacked.over()
        if not self._has_said:
            self._has_said = True
            log.warning(
                "relibra packs the samples of job %s; rollout %d: %s. Later rollouts are packed without a line",
                self._job.job,
                self.rollout_id,
                packed_steps[0][1],
            )
        return RolloutSchedule.of([dealt for dealt, _ in packed_steps])

    def _packed_step(
        self, step: int, own: Dealt, routing: Sequence[Any], length_S: Sequence[int], room: Mapping[str, Any]
    ) -> tuple[Dealt, str]:
        """Return how the samples of a training step are dealt, and why."""
        samples = sorted(sample for of_rank in own for micro_batch in of_rank for sample in micro_batch)
        place = {sample: index for index, sample in enumerate(samples)}
        job = self._job
        if self._clients is None:
            self._clients = job.clients(TIMEOUT_S)
        packable = PackableStep(
            routed_S=[routing[sample] for sample in samples],
            length_S=[length_S[sample] for sample in samples],
            dealt=[[[place[sample] for sample in micro_batch] for micro_batch in of_rank] for of_rank in own],
            **room,
        )
        name = f"rollout-{self.rollout_id}"
        dealt, reason = pack_step(
            *self._clients, job.job, step, name, packable, job.layers, job.ranks, timeout_s=TIMEOUT_S
        )
        return [[[samples[index] for index in micro_batch] for micro_batch in of_rank] for of_rank in dealt], reason

    def _first_step(self, num_training_steps: int) -> int:
        """Return the step at the planner of the actor's first pass, or a later one if rollouts are ahead.

        With several training steps, each has a pass over log-probabilities and an update.
        """
        rollout_id, step = self._told or (self.rollout_id, 0)
        self._told = rollout_id, step
        num_steps = num_training_steps if num_training_steps == 1 else 2 * num_training_steps
        return step + max(0, self.rollout_id - rollout_id) * (num_steps + self._job.num_other_steps)


def room_of(args: Any, cp_size: int) -> dict[str, Any]:
    """Return what the framework's own micro-batches keep to, by its arguments, as `PackableStep` names it."""
    if not args.use_dynamic_batch_size:
        return {"keeps_counts": True}
    if getattr(args, "balance_by_flops", False):
        return {}  # the frameworks do not keep to the token budget then
    return {"token_budget": args.max_tokens_per_gpu * cp_size}


def install(manager: Any, splitting: str, job: PackingJob) -> None:
    """Pack the rollouts of a manager from now on, for training processes that have started. Ray calls it in its actor.

    Args:
        manager: the rollout manager.
        splitting: the function that splits the data of a rollout, and calls `build_dp_schedule`: a method of the
            manager, or module:function.
        job: the job.
    """
    if _NAME in vars(manager):
        vars(manager)[_NAME].follow(job)
        return
    packing = vars(manager)[_NAME] = RolloutPacking(job)
    module, _, function = splitting.rpartition(":")
    owner: Any = import_module(module) if module else manager
    split = getattr(owner, function)
    # Ray has copied the class of its actor, with globals of its own, and wrapped the methods.
    names = vars(owner) if module else inspect.unwrap(split).__globals__
    build = names["build_dp_schedule"]

    @functools.wraps(split)
    def split_packed(*args: Any, **more: Any) -> Any:
        packing.rollout_id = manager.rollout_id
        packing.data = next(argument for argument in (*args, *more.values()) if isinstance(argument, Mapping))
        try:
            return split(*args, **more)
        finally:
            packing.data = {}

    setattr(owner, function, split_packed)
    names["build_dp_schedule"] = functools.partial(_build_packed, packing, build)


def _build_packed(
    packing: RolloutPacking, build: Callable[..., Any], args: Any, parallel: Any, lengths: Sequence[int], **more: Any
) -> Any:
    """Return what `build_dp_schedule` returns, packed."""
    partitions, micro_batch_indices, num_microbatches, *rest = build(args, parallel, lengths, **more)
    own = RolloutSchedule(
        partitions=partitions, micro_batch_indices=micro_batch_indices, num_microbatches=num_microbatches
    )
    schedule = packing.pack(args, parallel["cp_size"], lengths, own)
    return (schedule.partitions, schedule.micro_batch_indices, num_microbatches, *rest)


def tell(manager: Any, rollout_id: int, next_step: int) -> None:
    """Tell the packing of a manager which step the actor's passes begin with after the updates of a rollout."""
    vars(manager)[_NAME].tell(rollout_id, next_step)
