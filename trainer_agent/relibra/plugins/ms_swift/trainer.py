"""ms-swift's Megatron trainer of GRPO with an agent inside: passes over log-probabilities and updates are planned."""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from swift.megatron.trainers import grpo_trainer

from relibra.agent import Phase
from relibra.errors import Unsupported
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses, within
from relibra.plugins.ms_swift import points
from relibra.plugins.ms_swift.batch import names, rank_batch, routings
from relibra.plugins.ms_swift.rollout import report_finished
from relibra.plugins.points import check_points
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.rollout_stream import RolloutStream
from relibra.plugins.settings import Mode, PluginSettings, job_name
from relibra.routing import SequenceRouting, read_model_config
from relibra.steps import RankBatch

log = logging.getLogger(__name__)

check_points(grpo_trainer, points.TRAINER, version=points.VERSION, without=points.OFF)


# ms-swift reads names and does not use them; sharded state is under logical names.
@within("ignoring_names", "save_checkpoint")
class BalancedGRPOTrainer(grpo_trainer.MegatronGRPOTrainer):  # type: ignore[misc]
    """ms-swift's trainer; its own methods run unchanged, between the calls that drive the agent.

    ms-swift computes the log-probabilities of a micro-batch as soon as it has made it. This trainer waits until all
    micro-batches of a generation are there, so that they are planned together, and then has ms-swift compute all.
    Each update is a step at the planner, and so is the policy's pass over log-probabilities before it. If a generation
    has one update, both have the same micro-batches, and are two phases of one step.
    """

    passes = BalancedPasses()
    """The passes of the policy, those of its agent once everything is built."""
    reference = BalancedPasses()
    """The passes of the reference, a job of its own that is planned from history, if the job has one."""
    _has_said_unplanned = False

    def __init__(self, args: Any, *more: Any, **kwargs: Any) -> None:
        """Build models and rollout as ms-swift does, and attach an agent to the policy.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model, the optimizer or a setting of ms-swift.
        """
        settings = PluginSettings.read({}, os.environ, default_job=_job_name(args), may_pack=False)
        if settings.mode is Mode.BALANCE:
            _check_settings(args)
        super().__init__(args, *more, **kwargs)
        self._routings: dict[int, Callable[[], tuple[list[SequenceRouting], list[str]]]] = {}
        """The routing and names of the sequences of each micro-batch of the generation, by the identity of its
        `GRPOBatch`; on reporting ranks."""
        self._waiting: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        """The micro-batches whose log-probabilities are to be computed."""
        layers = read_model_config(self.hf_model_dir)
        unplanned = ["the teacher"] if self.teacher_models else []
        self.passes = attach_job(settings, layers, self.wrapped_models, self.optimizer, unplanned=unplanned)
        if self.passes.agent is not None and args.router_replay_mode == "R3" and self.vllm_mode == "colocate":
            report_finished(self.engine.engine, RolloutStream(self._rollout_job), self._is_training)
        if self.beta and self.ref_models:
            self.reference = attach_job(settings, layers, self.ref_models, None, beside="reference", moves=False)
        if self.passes.mover is not None:
            export = self.bridge.export_weights

            @functools.wraps(export)
            def export_weights(*args: Any, **kwargs: Any) -> Iterator[Any]:
                return self.passes.read_at_original_places(export(*args, **kwargs))

            self.bridge.export_weights = export_weights
            self.bridge.save_weights = self.passes.mover.at_original_places()(self.bridge.save_weights)
            # ms-swift's default, dp_reshardable, stores optimizer state by place.
            args.dist_ckpt_optim_fully_reshardable = True

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train as ms-swift does, and end the agent's step."""
        result = super().train_step(*args, **kwargs)
        self.passes.end()
        return result

    def forward_step(self, data_iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a micro-batch of an update as ms-swift does, and tell the agent which one it is."""
        return self.passes.forward_step(super().forward_step)(data_iterator, model, *args, **kwargs)

    def compute_per_token_logps(self, model: Any, data_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a micro-batch without gradients, and tell the agent of its model which one it is."""
        compute = super().compute_per_token_logps

        def run(data_iterator: Any, model: Any) -> Any:
            return compute(model, data_iterator, *args, **kwargs)

        for models, passes in ((self.unwrapped_models, self.passes), (self.ref_models, self.reference)):
            if models and model is models[0]:
                return passes.forward_step(run)(data_iterator, model)
        return run(data_iterator, model)

    @contextmanager
    def offload_context(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Offload as ms-swift does, which reads names and does not use them."""
        with self.passes.ignoring_names(), self.reference.ignoring_names(), super().offload_context(*args, **kwargs):
            yield

    def _build_rollout_buffer(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_training():
            self._routings.clear()
        return super()._build_rollout_buffer(*args, **kwargs)

    def _maybe_compute_logps(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if self.passes.agent is None or not self._is_training():
            return super()._maybe_compute_logps(batch, *args, **kwargs)
        self._keep_routing(batch)
        if kwargs.get("teacher_inputs") is not None:  # the policy may be its own teacher, with tokens of its own
            self._say_unplanned()
            return super()._maybe_compute_logps(batch, *args, **kwargs)
        self._waiting.append((batch, args, kwargs))
        return batch

    def _compute_kl_from_batches(self, *args: Any, **kwargs: Any) -> Any:
        self._compute_waiting()
        return super()._compute_kl_from_batches(*args, **kwargs)

    def _compute_advantages(self, *args: Any, **kwargs: Any) -> Any:
        self._compute_waiting()
        return super()._compute_advantages(*args, **kwargs)

    def _on_train_step_batch(self, encoded_batches: Any, *args: Any, **kwargs: Any) -> None:
        super()._on_train_step_batch(encoded_batches, *args, **kwargs)
        if self.passes.agent is not None:
            self._begin([batch["grpo_batch"] for batch in encoded_batches], Phase.UPDATE)

    def _compute_waiting(self) -> None:
        """Collective over all ranks: compute the log-probabilities of all micro-batches that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self._begin([batch["grpo_batch"] for batch, *_ in waiting], Phase.RECOMPUTE)
        self.reference.begin(Phase.RECOMPUTE)
        with grpo_trainer.profiling_context(self, "compute_ref_old_logps"):
            for batch, args, kwargs in waiting:
                batch.update(super()._maybe_compute_logps(batch, *args, **kwargs))
        self.passes.pause()
        self.reference.end()

    def _keep_routing(self, batch: Mapping[str, Any]) -> None:
        if self.passes.planned.is_reporting and batch.get("routed_experts") is not None:
            # ms-swift will replace the rows by those of this rank. An error of a check here would end the job.
            rows, tokens = batch["routed_experts"].to("cpu", torch.int32), batch["input_ids"].to("cpu")
            lengths = batch["grpo_batch"].seq_lengths.to("cpu") if self.args.padding_free else None

            def read() -> tuple[list[SequenceRouting], list[str]]:
                of_sequences = routings(rows, lengths, self.passes.layers)
                return of_sequences, names(tokens, lengths, of_sequences)

            self._routings[id(batch["grpo_batch"])] = read

    def _begin(self, batches: Sequence[Any], phase: Phase) -> None:
        """Collective over all ranks: begin a phase with these micro-batches."""
        key = tuple(map(id, batches))
        if self.args.router_replay_mode == "R3":
            self.passes.begin(phase, lambda: self._rank_batch(key), key)
        else:
            self.passes.begin(phase)

    def _rank_batch(self, key: tuple[int, ...]) -> RankBatch:
        micro_batches = [self._routings[batch]() for batch in key]
        of_all = [name for _, of_sequences in micro_batches for name in of_sequences]
        return rank_batch([of_sequences for of_sequences, _ in micro_batches], of_all)

    def _rollout_job(self) -> RolloutJob:
        planned = self.passes.planned
        planner, job = planned.settings.planner, planned.settings.job
        return RolloutJob(planner=planner, job=job, attempt=planned.attempt, layers=self.passes.layers)

    def _say_unplanned(self) -> None:
        if not self._has_said_unplanned:
            self._has_said_unplanned = True
            log.warning(
                "relibra: passes over log-probabilities with a teacher_prompt run without a plan; updates are planned. "
                "This line is not repeated"
            )

    def _is_training(self) -> bool:
        return bool(self.unwrapped_models[0].training)


def _job_name(args: Any) -> str:
    output = Path(args.output_dir)
    folder = output.parent if args.add_version else output  # a version is a folder of another name at every start
    return job_name(args.wandb_exp_name or args.swanlab_exp_name or folder.name, default="ms-swift")


def _check_settings(args: Any) -> None:
    """Check settings of ms-swift.

    Raises:
        Unsupported: the plug-in was not run with a setting.
    """
    if args.tuner_type != "full":
        raise Unsupported(
            f"expected --tuner_type full, because relibra does not balance LoRA in ms-swift, got {args.tuner_type}"
        )
    if args.context_parallel_size > 1 and getattr(args, "cp_partition_mode", "zigzag") != "zigzag":
        raise Unsupported(
            f"expected --cp_partition_mode zigzag, because relibra was not run with another cut, got "
            f"{args.cp_partition_mode}"
        )
