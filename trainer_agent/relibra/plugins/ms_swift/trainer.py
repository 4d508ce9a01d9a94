"""ms-swift's Megatron trainer of GRPO with an agent inside: passes over log-probabilities and updates are planned."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from swift.megatron.trainers import grpo_trainer

from relibra.agent import Agent, Phase, StepOutcome
from relibra.agent.plans.plan_source import PlanSource
from relibra.errors import InvalidInput, Unsupported
from relibra.plugins.attached_job import attach_job
from relibra.plugins.ms_swift import points
from relibra.plugins.ms_swift.batch import rank_batch, routings, trainer_layout
from relibra.plugins.planned_passes import PlannedPasses
from relibra.plugins.points import check_points
from relibra.plugins.settings import PluginSettings, job_name
from relibra.routing import SequenceRouting, read_model_config

log = logging.getLogger(__name__)

check_points(grpo_trainer, points.TRAINER, version=points.VERSION, without=points.OFF)


class BalancedGRPOTrainer(grpo_trainer.MegatronGRPOTrainer):  # type: ignore[misc]
    """ms-swift's trainer; its own methods run unchanged, between the calls that drive the agent.

    ms-swift computes the log-probabilities of a micro-batch as soon as it has made it. This trainer waits until all
    micro-batches of a generation are there, so that they are planned together, and then has ms-swift compute all.
    Each update is a step at the planner, and so is the pass over log-probabilities before it. If a generation has one
    update, both have the same micro-batches, and are two phases of one step.
    """

    plan_source: PlanSource | None = None
    """Where plans come from, if not from the planner."""
    outcome: StepOutcome | None = None
    """The outcome of the last pass that began under a plan."""
    agent: Agent | None = None
    """The agent, once everything is built."""
    _passes: PlannedPasses
    _is_planned = False
    """Whether the micro-batches of the policy that run now have a plan."""
    _has_said_unplanned = False

    def __init__(self, args: Any, template: Any, **kwargs: Any) -> None:
        """Build models and rollout as ms-swift does, and attach an agent to the policy.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model, the optimizer or a setting of ms-swift.
        """
        _check_settings(args)
        settings = PluginSettings.read({}, os.environ, default_job=_job_name(args), may_pack=False)
        super().__init__(args, template, **kwargs)
        self._layers = read_model_config(self.hf_model_dir)
        self._pass_index = -1
        self._routings: dict[int, Callable[[], list[SequenceRouting]]] = {}
        """The routing of each micro-batch of the generation, by the identity of its `GRPOBatch`; on reporting ranks."""
        self._planned_batches: list[int] = []
        """The micro-batches of the open step."""
        self._waiting: list[tuple[Any, dict[str, Any]]] = []
        """The micro-batches whose log-probabilities are to be computed."""
        job = attach_job(
            settings,
            self._layers,
            lambda ranks: trainer_layout(ranks, padding_free=args.padding_free),
            self.wrapped_models,
            self.optimizer,
            plans=self.plan_source,
        )
        self.agent, self._passes = job.agent, job.passes
        self.bridge.export_weights = _read_by(job.agent.at_original_places, self.bridge.export_weights)
        self.bridge.save_weights = job.agent.at_original_places()(self.bridge.save_weights)
        # ms-swift's default, dp_reshardable, stores optimizer state by place.
        args.dist_ckpt_optim_fully_reshardable = True

    def train_step(self, train_data_iterator: Any) -> Any:
        """Train as ms-swift does, and end the agent's step."""
        result = super().train_step(train_data_iterator)
        self._is_planned = False
        if self.agent is not None:
            self.agent.end_step()
        return result

    def forward_step(self, data_iterator: Any, model: Any) -> Any:
        """Run a micro-batch of an update as ms-swift does, and tell the agent which one it is."""
        return self._told(super().forward_step)(data_iterator, model)

    def compute_per_token_logps(self, model: Any, data_iterator: Any, **kwargs: Any) -> Any:
        """Run a micro-batch without gradients, and tell the agent which one it is if the policy runs it."""
        compute = super().compute_per_token_logps

        def run(data_iterator: Any, model: Any) -> Any:
            return compute(model, data_iterator, **kwargs)

        return (self._told(run) if model is self.unwrapped_models[0] else run)(data_iterator, model)

    @contextmanager
    def offload_context(self) -> Iterator[None]:
        """Offload as ms-swift does, which walks over names without a use for them."""
        with self._ignoring_names(), super().offload_context():
            yield

    def save_checkpoint(self) -> None:
        """Save as ms-swift does: sharded state under logical names, weights of Hugging Face from original places."""
        with self._ignoring_names():
            super().save_checkpoint()

    def _build_rollout_buffer(self, data_iterator: Any) -> Any:
        if self._is_training():
            self._routings.clear()
            self._planned_batches = []
        return super()._build_rollout_buffer(data_iterator)

    def _maybe_compute_logps(self, batch: Any, **kwargs: Any) -> Any:
        if not self._is_training():
            return super()._maybe_compute_logps(batch, **kwargs)
        self._keep_routing(batch)
        if kwargs.get("teacher_inputs") is not None:  # the policy may be its own teacher, with tokens of its own
            self._say_unplanned()
            return super()._maybe_compute_logps(batch, **kwargs)
        self._waiting.append((batch, kwargs))
        return batch

    def _compute_kl_from_batches(self, *args: Any, **kwargs: Any) -> Any:
        self._compute_waiting()
        return super()._compute_kl_from_batches(*args, **kwargs)

    def _compute_advantages(self, *args: Any, **kwargs: Any) -> Any:
        self._compute_waiting()
        return super()._compute_advantages(*args, **kwargs)

    def _on_train_step_batch(self, encoded_batches: Any) -> None:
        super()._on_train_step_batch(encoded_batches)
        self._is_planned = self._begin([each["grpo_batch"] for each in encoded_batches], Phase.UPDATE)

    def _compute_waiting(self) -> None:
        """Collective over all ranks: compute the log-probabilities of all micro-batches that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._is_planned = self._begin([batch["grpo_batch"] for batch, _ in waiting], Phase.RECOMPUTE)
        with grpo_trainer.profiling_context(self, "compute_ref_old_logps"):
            for batch, kwargs in waiting:
                batch.update(super()._maybe_compute_logps(batch, **kwargs))
        self._is_planned = False

    def _keep_routing(self, batch: Mapping[str, Any]) -> None:
        if self._passes.is_reporting:
            # ms-swift will replace the rows by those of this rank. An error of a check here would end the job.
            rows = batch["routed_experts"].to("cpu", torch.int32)
            lengths = batch["grpo_batch"].seq_lengths.to("cpu") if self.args.padding_free else None
            self._routings[id(batch["grpo_batch"])] = functools.partial(routings, rows, lengths, self._layers)

    def _begin(self, batches: Sequence[Any], phase: Phase) -> bool:
        """Collective over all ranks: begin a phase with these micro-batches; return whether it has a plan."""
        assert self.agent is not None
        wanted = [id(each) for each in batches]
        if wanted != self._planned_batches:
            self._pass_index += 1
            is_submitted = self._passes.plan(
                self._pass_index, lambda: rank_batch([self._routings[each]() for each in wanted])
            )
            self._planned_batches = wanted if is_submitted or self.plan_source is not None else []
        if not self._planned_batches:
            self.agent.end_step()
            return False
        self.outcome = self.agent.begin_step(self._pass_index, phase)
        return True

    def _say_unplanned(self) -> None:
        if not self._has_said_unplanned:
            self._has_said_unplanned = True
            log.warning(
                "relibra: passes over log-probabilities with a teacher_prompt run without a plan; updates are planned. "
                "This line is not repeated"
            )

    def _told(self, run: Callable[..., Any]) -> Callable[..., Any]:
        if not self._is_planned:
            return run
        assert self.agent is not None
        return self.agent.forward_step(run)

    def _is_training(self) -> bool:
        return bool(self.unwrapped_models[0].training)

    def _ignoring_names(self) -> AbstractContextManager[None]:
        return nullcontext() if self.agent is None else self.agent.ignoring_names()


def _read_by(context: Callable[[], AbstractContextManager[None]], export: Callable[..., Any]) -> Callable[..., Any]:
    """Return an export that is read inside a context. The first read and the end are collective over all ranks."""

    @functools.wraps(export)
    def read(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with context():
            yield from export(*args, **kwargs)

    return read


def _job_name(args: Any) -> str:
    return job_name(args.wandb_exp_name or args.swanlab_exp_name, default="ms-swift")


def _check_settings(args: Any) -> None:
    """Check settings of ms-swift with which relibra cannot plan passes.

    Raises:
        InvalidInput: routing is not replayed from the rollout.
        Unsupported: relibra plans no such rows or weights.
    """
    if args.router_replay_mode != "R3":
        raise InvalidInput.of(
            "--router_replay_mode",
            expected="R3, because relibra plans for routing that is replayed from the rollout (or remove "
            f"{points.OFF})",
            got=args.router_replay_mode,
        )
    if args.tuner_type != "full":
        raise Unsupported(
            f"expected --tuner_type full, because relibra does not balance LoRA in ms-swift, got {args.tuner_type}"
        )
    if args.context_parallel_size > 1 and getattr(args, "cp_partition_mode", "zigzag") != "zigzag":
        raise Unsupported(
            f"expected --cp_partition_mode zigzag, because relibra plans no other cut, got {args.cp_partition_mode}"
        )
