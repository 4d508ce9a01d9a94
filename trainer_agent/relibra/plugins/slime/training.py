"""A training process of slime or miles with an agent inside: its passes are planned, and its weights leave by name."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch.distributed as dist

from relibra.agent import Phase
from relibra.errors import Unsupported
from relibra.plugins.attached_job import attach_job, parallel_layout
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.settings import Mode, PluginSettings, job_name
from relibra.plugins.slime.framework import Batches, Framework, config_file
from relibra.plugins.slime.other_models import OtherModels
from relibra.plugins.slime.replay import listen_to_replays
from relibra.plugins.slime.rollout import report_samples
from relibra.plugins.slime.rollout_packing import PackingJob, install, tell
from relibra.routing import read_model_config
from relibra.steps import RankBatch
from relibra.steps.packing import check_packable

log = logging.getLogger(__name__)


class BalancedTraining:
    """Drives the agent of one training process, of the actor or of a critic.

    A critic is a job of its own, planned from history, and no expert of it moves. Every training step of a rollout is
    a step at the planner, and so is the pass over old log-probabilities or values for it. If the routing of a rollout
    with one training step is known, both passes have the same micro-batches, and are two phases of one step.

    Args:
        framework: slime or miles.
        args: the arguments of the job.

    Raises:
        InvalidInput: a setting is missing or wrong, or the checkpoint has no MoE layers.
        Unsupported: relibra cannot balance the job with one of its options.
    """

    def __init__(self, framework: Framework, args: Any) -> None:
        self._framework, self._args = framework, args
        self._settings = PluginSettings.read(
            getattr(args, "relibra", None) or {},
            os.environ,
            default_job=_job_name(args, framework.name),
        )
        if self._settings.mode is Mode.BALANCE:
            framework.check(args)
            if self._settings.pack:
                framework.check_packing(args)
        self._layers = read_model_config(config_file(args.hf_checkpoint))
        self.passes = BalancedPasses()
        """The passes, those of the agent once the model is built."""
        self._is_critic = False
        self._has_routing = self._has_updater = False
        self._batches: Batches | None = None
        """The batches of the rollout, on ranks that report them."""
        self._phase: Phase | None = None
        self._rollout = self._training_step = 0
        self._others = OtherModels(self.passes, args)
        self._manager: Any = None
        """The rollout manager, if this process tells it which step comes next."""

    def attach(self, role: str, chunks: Sequence[Any], optimizer: Any) -> None:
        """Collective over all ranks: register the job, and attach an agent to the actor or critic that was built."""
        self._is_critic = role == "critic"
        beside, moves = "critic" if self._is_critic else "", not self._is_critic
        self.passes = attach_job(self._settings, self._layers, chunks, optimizer, beside=beside, moves=moves)
        if self._is_critic or self.passes.agent is None:
            return
        self._others = OtherModels(self.passes, self._args)
        if self.passes.mover is not None:
            # Megatron's default, dp_reshardable, stores optimizer state by place.
            self._args.dist_ckpt_optim_fully_reshardable = True
        listen_to_replays(self.passes.agent, chunks, self._replaying)
        if self._settings.pack:
            check_packable(parallel_layout(), self.passes.planned.cluster)

    def meet_manager(self, manager: Any) -> None:
        """Have the rollout manager report its samples and, if pack is set, ask the planner who gets which.

        Args:
            manager: the handle of the actor.
        """
        if self.passes.agent is None or self._is_critic or manager is None or dist.get_rank() != 0:
            return
        without = "samples are reported when training begins"
        if getattr(self._args, "use_rollout_routing_replay", False):
            self._send(manager, without, report_samples, self._framework.generating)
        if not self._settings.pack:
            return
        planned = self.passes.planned
        job = PackingJob(
            planner=planned.settings.planner,
            job=planned.settings.job,
            attempt=planned.attempt,
            layers=self._layers,
            ranks=parallel_layout(),
            num_other_steps=self._others.num_steps,
        )
        without = f"pack is set, but {self._framework.name}'s own schedule stays"
        if self._send(manager, without, install, self._framework.splitting, job):
            self._manager = manager

    def _send(self, manager: Any, without: str, function: Callable[..., None], *args: Any) -> bool:
        """Call a function in the rollout manager; return whether it ended well. If not, the log says what follows."""
        try:
            import_module("ray").get(manager.__ray_call__.remote(function, *args))
        except Exception as error:  # any error: training goes on without it
            log.warning(
                "relibra: %s, because the rollout manager cannot load relibra; is it installed on that machine? %s: %s",
                without,
                type(error).__name__,
                error,
            )
            return False
        return True

    def tell_manager(self, rollout_id: int) -> None:
        """Tell the rollout manager with which step the actor goes on after the updates of a rollout. It may be busy."""
        if self._manager is not None:
            next_step = self.passes.next_index + self._others.num_steps
            self._manager.__ray_call__.remote(tell, rollout_id, next_step)

    def note_rollout(
        self, rollout_data: Mapping[str, Any], iterators: Sequence[Any], num_microbatches: Sequence[int]
    ) -> None:
        """Collective over all ranks: begin a rollout; keep its routing, if it has any, until its passes have begun."""
        self._rollout += 1
        self._has_routing = "rollout_routed_experts" in rollout_data and not self._is_critic
        if self._has_routing and self.passes.agent is not None and self.passes.planned.is_reporting:
            self._batches = self._framework.batches(self._layers, rollout_data, iterators, num_microbatches)
        self._others.begin()

    @contextmanager
    def log_probs(self, store_prefix: str) -> Iterator[None]:
        """Plan the passes over log-probabilities, or over the values of a critic, that run in the body.

        Args:
            store_prefix: empty for old log-probabilities and values; the reference and the teacher have prefixes.
        """
        is_trained = not store_prefix and (self._is_critic or not self._args.keep_old_actor)
        if not is_trained:
            self._others.go_on()
        with self._passes(Phase.RECOMPUTE if is_trained else None):
            yield

    @contextmanager
    def updates(self) -> Iterator[None]:
        """Plan the updates that run in the body, and end the step of the last one.

        The frameworks walk over `named_parameters` in an update, to add up gradients of tensor-parallel ranks and to
        check values. The names have no meaning outside of these walks.

        Raises:
            Unsupported: nobody has said what sends the weights, so they would leave under wrong names.
        """
        if self.passes.mover is not None and not self._has_updater:
            raise Unsupported(
                f"expected {self._framework.version} or one like it, whose actor keeps the sender of its weights in "
                f"weight_updater, and this {self._framework.name} has set no such attribute; use that version, or "
                "remove --custom-megatron-init-path to train without balancing"
            )
        with self._passes(Phase.UPDATE), self.passes.ignoring_names():
            yield
        self._batches, self._has_routing = None, False
        self.passes.end()
        self._others.end(has_updated=True)

    def run(self, schedule: Callable[..., Any], *, forward_step_func: Any, **more: Any) -> Any:
        """Run the micro-batches of a training step with megatron's schedule, under a plan if there is one."""
        if self.passes.agent is not None and self._phase is not None:
            self._begin(self._phase, self._training_step)
            self._training_step += 1
        if self._phase is not None or self._others.are_planned:
            forward_step_func = self.passes.forward_step(forward_step_func)
        return schedule(forward_step_func=forward_step_func, **more)

    def follow(self, backuper: Any) -> None:
        """Keep the order of experts in backups of weights, whatever reorders happen."""
        self._others.follow(backuper)
        if self.passes.mover is not None:
            self.passes.mover.follow(backuper)

    def send_right_names(self, updater: Any) -> None:
        """Make the updates of rollout engines send every expert under its own name; a second call does nothing."""
        self._has_updater = True
        agent = self.passes.mover
        if agent is None or "update_weights" in vars(updater):
            return
        if any(base.__name__ == "UpdateWeightFromTensor" for base in type(updater).__mro__):
            # Backups have the original order, so their names are right. The modules may have no memory then. slime also
            # sends an expert only to the rank of the engine that holds its number, for which it takes the place.
            updater.update_weights = agent.ignoring_names()(updater.update_weights)
        elif hasattr(updater, self._framework.sending):
            self._rename_experts(updater)
        else:  # slime's update through files of Hugging Face, which it writes by place
            updater.update_weights = agent.at_original_places()(updater.update_weights)

    def _rename_experts(self, updater: Any) -> None:
        update, send = updater.update_weights, getattr(updater, self._framework.sending)

        def update_weights(*args: Any, **kwargs: Any) -> Any:
            with self.passes.exporting() as renamed:

                def rename(weights: list[Any]) -> None:
                    # In place, because the frameworks empty the list to free the tensors.
                    weights[:] = renamed(list(weights), is_whole=False)

                setattr(updater, self._framework.sending, self._framework.renaming(send, rename))
                return update(*args, **kwargs)

        updater.update_weights = update_weights

    def _replaying(self) -> str:
        """Return what the replays of routing do, in a phase in which every model of this process replays alike.

        Ranks agree for a whole phase whether replays tell what routers will choose, and other models replay nothing.
        """
        has_others = self._phase is not Phase.UPDATE and self._others.num_steps
        return "" if has_others else self._framework.replaying()

    @contextmanager
    def _passes(self, phase: Phase | None) -> Iterator[None]:
        self._phase, self._training_step = phase, 0
        try:
            yield
        finally:
            self._phase = None

    def _begin(self, phase: Phase, training_step: int) -> None:
        """Collective over all ranks: begin the next pass of the actor."""
        self._others.end()
        if not self._has_routing:
            self.passes.begin(phase)
            return

        def batch() -> RankBatch:
            assert self._batches is not None
            return self._batches(training_step)

        self.passes.begin(phase, batch, key=(self._rollout, training_step))


def _job_name(args: Any, default: str) -> str:
    """Return the names that W&B gets, or that of the folder of checkpoints."""
    folder = Path(getattr(args, "save", None) or "").name
    of_tracker = (getattr(args, name, None) for name in ("wandb_project", "wandb_group"))
    return job_name(*of_tracker, default=job_name(folder, default=default))
