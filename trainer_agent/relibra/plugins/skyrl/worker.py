"""SkyRL's Megatron policy worker with an agent inside: every pass runs under a plan."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skyrl.backends.skyrl_train.workers.megatron import megatron_model_wrapper, megatron_worker

from relibra.agent import Phase
from relibra.errors import Unsupported
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses, within
from relibra.plugins.points import check_points
from relibra.plugins.settings import Mode, PluginSettings
from relibra.plugins.skyrl import points
from relibra.plugins.skyrl.batch import rank_batch
from relibra.routing.model_config import layers_of_config

check_points(megatron_worker, points.WORKER, version=points.VERSION, without=points.OFF)
check_points(megatron_model_wrapper, points.WRAPPER, version=points.VERSION, without=points.OFF)


# These read names and do not use them; sharded state is under logical names.
@within("ignoring_names", "offload_to_cpu", "backload_to_gpu", "save_checkpoint", "load_checkpoint")
# Megatron-Bridge writes the files in one call, and hands out no stream whose names could be changed.
@within("at_original_places", "save_hf_model")
class BalancedPolicyWorker(megatron_worker.MegatronPolicyWorkerBase):  # type: ignore[misc]
    """SkyRL's worker; its own methods run unchanged, between the calls that drive the agent.

    Each call of `forward` or `forward_backward` is a step at the planner. A worker without an optimizer
    (`inference_only_init`) is left as it is.
    """

    passes = BalancedPasses()
    """The passes of this worker; its agent balances them if the worker trains."""
    _logical_weights: Any = None
    """The source of the weight sync, if names travel with the weights."""

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        """Build the model as SkyRL does, and attach an agent to it.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model, the optimizer or a setting of SkyRL.
        """
        super().init_model(*args, **kwargs)
        if self.optimizer is None:
            return
        settings = PluginSettings.read({}, os.environ, default_job="skyrl", may_pack=False)
        layers = layers_of_config(self.strategy.hf_config.get_text_config().to_dict())
        if settings.mode is Mode.BALANCE:
            check_settings(self.cfg, self.cfg.policy.megatron_config, self.provider)
        self.passes = attach_job(settings, layers, self.actor_module, self.optimizer)
        if self.passes.agent is None:
            return
        self._has_gradients = False
        self.model.forward = self._in_a_pass(self.model.forward, is_training=False)
        self.model.forward_backward_mini_batch = self._in_a_pass(
            self.model.forward_backward_mini_batch, is_training=True
        )
        if self.passes.mover is not None:
            # SkyRL's default, dp_reshardable, stores optimizer state by place.
            self.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True

    def optim_step(self, *args: Any, **kwargs: Any) -> Any:
        """Step as SkyRL does, and end the agent's step."""
        grad_norm = super().optim_step(*args, **kwargs)
        self.passes.end()
        self._has_gradients = False
        return grad_norm

    async def init_weight_sync_state(self, *args: Any, **kwargs: Any) -> None:
        """Collective over all ranks: prepare the weight sync as SkyRL does, which may read weights."""
        with self.passes.at_original_places():
            await super().init_weight_sync_state(*args, **kwargs)

    def _build_weight_source(self, dtype: Any, backend: str, *args: Any, **kwargs: Any) -> Any:
        source = super()._build_weight_source(dtype, backend, *args, **kwargs)
        if self.passes.mover is None:
            return source
        from relibra.plugins.skyrl.weights import BACKENDS, LogicalWeights

        sends_adapters = self._is_lora and not self.cfg.policy.megatron_config.lora_config.merge_lora
        if backend in BACKENDS and not sends_adapters:
            source = self._logical_weights = LogicalWeights(source)
        return source

    async def broadcast_to_inference_engines(self, *args: Any, **kwargs: Any) -> None:
        """Collective over all ranks: send weights as SkyRL does, each expert under its own name.

        Backends that do not tell the names every time read the weights from original places.
        """
        weights = self._logical_weights
        with self.passes.at_original_places() if weights is None else weights.exporting(self.passes):
            await super().broadcast_to_inference_engines(*args, **kwargs)

    def _in_a_pass(self, run: Callable[..., Any], *, is_training: bool) -> Callable[..., Any]:
        """Return a method of the model's wrapper that has its micro-batches planned before it runs them."""

        @functools.wraps(run)
        def planned(micro_batches: Sequence[Mapping[str, Any]], *args: Any, **kwargs: Any) -> Any:
            phase = Phase.UPDATE if is_training and not kwargs.get("forward_only", False) else Phase.RECOMPUTE
            self._begin(micro_batches, phase)
            with self.passes.in_schedules_of(megatron_model_wrapper):
                return run(micro_batches, *args, **kwargs)

        return planned

    def _begin(self, micro_batches: Sequence[Mapping[str, Any]], phase: Phase) -> None:
        """Collective over all ranks: begin a pass."""
        # Experts must not move while gradients accumulate over several calls of forward_backward.
        may_move = not self._has_gradients
        self._has_gradients |= phase is Phase.UPDATE
        has_routing = all(batch.get("rollout_expert_indices") is not None for batch in micro_batches)
        if not may_move:
            self.passes.begin_in_place()
        elif has_routing:
            self.passes.begin(phase, lambda: rank_batch(micro_batches, self.passes.layers))
        else:
            self.passes.begin(phase)


def check_settings(config: Any, megatron: Any, provider: Any) -> None:
    """Check settings of SkyRL.

    Args:
        config: that of the trainer.
        megatron: that of megatron for this model.
        provider: Megatron-Bridge's provider of the model.

    Raises:
        Unsupported: the plug-in was not run with a setting.
    """
    if getattr(provider, "fp8", None):
        raise Unsupported("expected no fp8, because the plug-in was not run with it in SkyRL")
    if not config.remove_microbatch_padding and megatron.context_parallel_size > 1:
        raise Unsupported(
            "expected trainer.remove_microbatch_padding=true with context parallelism, because the plug-in was not run "
            "with another setting"
        )
