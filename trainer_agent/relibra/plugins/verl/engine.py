"""verl's Megatron engines with an agent inside: every pass of actor, critic and reference runs under a plan."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from relibra.agent import Agent, Phase
from relibra.errors import Unsupported
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses, replace_attribute, within
from relibra.plugins.settings import Mode, PluginSettings
from relibra.plugins.verl import sent
from relibra.plugins.verl.batch import rank_batch
from relibra.plugins.verl.configuration import (
    default_job,
    find_configuration,
    has_planner,
    relibra_section,
    unplanned_models,
)
from relibra.plugins.verl.host_copies import HostCopies
from relibra.plugins.verl.trained_job import TrainingProcess
from relibra.routing import read_model_config

log = logging.getLogger(__name__)


def balanced(engine: type[Any], beside: str = "") -> type[Any]:
    """Return a subclass of a Megatron engine of verl that balances its model.

    Each call of `forward_backward_batch` is a step at the planner. The actor is the job. Each other model is a job of
    its own, planned from history. An engine without an optimizer is that of the reference, and its steps end with
    their passes.

    Args:
        engine: `MegatronEngineWithLMHead` or `MegatronEngineWithValueHead`.
        beside: what the model is if it is not the actor, such as "critic".
    """
    from verl.workers.engine.megatron import transformer_impl

    # These read names and do not use them; sharded state is under logical names.
    @within("ignoring_names", "to", "save_checkpoint", "load_checkpoint")
    class BalancedEngine(engine):  # type: ignore[misc]
        """verl's engine; its own methods run unchanged, between the calls that drive the agent."""

        passes = BalancedPasses()
        """The passes of this engine, with an agent once the model is built."""
        _process: TrainingProcess | None = None
        """What the driver asks, of the actor alone."""

        def initialize(self, *args: Any, **kwargs: Any) -> None:
            """Build the model as verl does, and attach an agent to it.

            Raises:
                InvalidInput: a setting is missing or wrong.
                Unsupported: the agent cannot execute the model, the optimizer or a setting of verl.
            """
            # verl builds the model anew, so the old one is given up as it is. The job goes on, and its passes count on.
            self.passes.close(goes_on=True)
            forward_only = self.engine_config.forward_only
            model = "reference" if forward_only else beside
            configuration = find_configuration() or sent.received
            if model and not has_planner(configuration, os.environ):
                log.warning(
                    "relibra leaves the %s as it is, because neither verl's configuration, which verl does not hand to "
                    "this process, nor RELIBRA_PLANNER in its environment names a planner",
                    model,
                )
                super().initialize(*args, **kwargs)
                return
            settings = PluginSettings.read(
                relibra_section(configuration), os.environ, default_job=default_job(configuration)
            )
            super().initialize(*args, **kwargs)
            if settings.mode is Mode.BALANCE:
                check_settings(self.engine_config)
            with self._on_device():
                self.passes = attach_job(
                    settings,
                    read_model_config(self.model_config.local_path),
                    self.module,
                    self.optimizer,
                    beside=model,
                    unplanned=() if model else unplanned_models(configuration),
                    next_index=self.passes.next_index,
                )
            if not model:
                self._process = TrainingProcess(settings, self.passes)
            self._host_copies = HostCopies(self.passes, self.module, partial(self._on_device, weights_alone=True))
            if self.passes.mover is not None and not forward_only:
                self._checkpoint_by_expert(self.passes.mover)

        def forward_backward_batch(
            self, data: Any, loss_function: Any, forward_only: bool = False, *args: Any, **kwargs: Any
        ) -> Any:
            """Run a pass as verl does, under a plan."""
            if self.passes.agent is None:
                return super().forward_backward_batch(data, loss_function, forward_only, *args, **kwargs)
            self.passes.pause()
            with self._seeing_micro_batches(lambda *of_pass: self._begin(*of_pass, forward_only=forward_only)):
                output = super().forward_backward_batch(data, loss_function, forward_only, *args, **kwargs)
            if self.optimizer is None:
                self.passes.end()
            return output

        def forward_step(self, batch_iter: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            """Run one micro-batch as verl does, and tell the agent which one it is."""
            return self.passes.forward_step(super().forward_step)(batch_iter, model, *args, **kwargs)

        def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
            """Step as verl does, and end the agent's step."""
            grad_norm = super().optimizer_step(*args, **kwargs)
            self.passes.end()
            return grad_norm

        def get_per_tensor_param(self, *args: Any, **kwargs: Any) -> Any:
            """Return verl's export, with each expert under its own name, while it stays where it is.

            The first read is collective over all ranks.
            """
            with self.passes.ignoring_names():
                weights, adapter = super().get_per_tensor_param(*args, **kwargs)
            # With an adapter, the export may be that of the adapter alone.
            return self.passes.export(weights, is_whole=adapter is None), adapter

        def get_per_tensor_param_shard(self, *args: Any, **kwargs: Any) -> Any:
            """Return verl's export of shards, which has every expert at its original place while it is read.

            verl sends what changed in a shard since the last export, under megatron's names, so a place must hold the
            same expert each time. The first read and the end are collective over all ranks.
            """
            with self.passes.ignoring_names():
                shards, adapter = super().get_per_tensor_param_shard(*args, **kwargs)
            return self.passes.read_at_original_places(shards), adapter

        def _checkpoint_by_expert(self, mover: Agent) -> None:
            manager = self.checkpoint_mananager  # verl spells it so
            # Its default, dp_reshardable, stores optimizer state by place.
            manager.config.megatron.dist_ckpt_optim_fully_reshardable = True
            # The bridges write files in one call, and hand out no stream whose names could be changed.
            save, load = manager._save_model_as_hf_via_bridge, manager._load_model_as_hf_via_bridge
            manager._save_model_as_hf_via_bridge = mover.at_original_places()(save)
            manager._load_model_as_hf_via_bridge = self.passes.loading_by_place()(load)

        @contextmanager
        def _on_device(self, *, weights_alone: bool = False) -> Iterator[None]:
            """Have parameters, optimizer state and gradients on the device, which verl offloads between its calls."""
            away = {"model": self._is_offload_param, "optimizer": self._is_offload_optimizer and not weights_alone}
            if not any(away.values()):
                yield
                return
            has_gradients = self._is_offload_param and not weights_alone
            super().to(transformer_impl.get_device_name(), **away, grad=has_gradients)
            yield
            super().to("cpu", **away, grad=has_gradients)

        def _begin(self, data: Any, micro_batches: Any, indices: Any, *, forward_only: bool) -> None:
            """Collective over all ranks: have a pass planned, and begin it, once its micro-batches are known."""
            passes, phase = self.passes, Phase.RECOMPUTE if forward_only else Phase.UPDATE
            if forward_only and self._host_copies.are_older_in_use:
                passes.begin_in_place()
                return
            replays = transformer_impl.tu.get_non_tensor_data(data, key="enable_routing_replay", default=False)
            if self._process is None or not replays or "routed_experts" not in data.keys():  # noqa: SIM118 (a TensorDict refuses `in`)
                passes.begin(phase)
                return
            self._process.note_pass()
            mode = self.engine_config.router_replay.mode
            passes.begin(phase, lambda: rank_batch(data, micro_batches, indices, passes.layers, mode=mode))

        @contextmanager
        def _seeing_micro_batches(self, note: Callable[[Any, Any, Any], None]) -> Iterator[None]:
            """Call `note` with the micro-batches that verl forms in the body, before it runs any of them."""
            prepare = transformer_impl.prepare_micro_batches

            def prepare_micro_batches(data: Any, *args: Any, **kwargs: Any) -> Any:
                micro_batches, indices = prepare(data, *args, **kwargs)
                note(data, micro_batches, indices)
                return micro_batches, indices

            with replace_attribute(transformer_impl, "prepare_micro_batches", prepare_micro_batches):
                yield

    return BalancedEngine


def check_settings(engine_config: Any) -> None:
    """Check verl's configuration of the engine.

    Raises:
        Unsupported: the plug-in was not run with a setting.
    """
    if engine_config.dynamic_context_parallel:
        raise Unsupported(
            "expected verl's dynamic_context_parallel=False, because relibra does not see the micro-batches that verl "
            "forms with it"
        )
