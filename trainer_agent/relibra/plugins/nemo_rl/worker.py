"""NeMo-RL's Megatron policy worker with an agent inside: every pass runs under a plan.

Ray finds actor classes by their module, so the classes stand at the top of this one, and importing it needs NeMo-RL.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import ray
import torch.distributed as dist
from megatron.core.utils import get_model_config
from nemo_rl.models.megatron import router_replay
from nemo_rl.models.megatron import train as megatron_train
from nemo_rl.models.policy.utils import get_runtime_env_for_policy_worker
from nemo_rl.models.policy.workers import megatron_policy_worker as policy_worker

from relibra.agent import Agent, Phase
from relibra.agent.homes.snapshot import Snapshot
from relibra.errors import Unsupported
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses, replace_attribute, within
from relibra.plugins.nemo_rl import points
from relibra.plugins.nemo_rl.batch import rank_batch
from relibra.plugins.nemo_rl.refusals import check_generation, check_settings
from relibra.plugins.settings import Mode, PluginSettings
from relibra.routing import ModelLayers
from relibra.steps import RankBatch

log = logging.getLogger(__name__)

points.check(policy_worker, megatron_train, router_replay)


@within("ignoring_names", "check_tensor_parallel_attributes")
# NeMo-RL takes torch's collectives away while it prepares to reshard, so experts move before and after.
@within("at_original_places", "prepare_refit_info", "prepare_nccl_reshard_refit_info", "nccl_reshard_refit")
class BalancedWorker(policy_worker.MegatronPolicyWorkerImpl):  # type: ignore[misc]
    """NeMo-RL's worker; its own methods run unchanged, between the calls that drive the agent.

    A worker without an optimizer, such as that of a teacher, is left as it is.
    """

    passes = BalancedPasses()
    """The passes of this worker; its agent balances them if the worker trains."""
    _has_reference = False
    """Whether the reference is in the place of the policy, so that its pass has begun and no expert may move."""
    _sends_names = False
    """Whether the export that is read goes to a receiver that gets names together with the tensors."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        """Build the worker as NeMo-RL does, and attach an agent to its model.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model, the optimizer or a setting of NeMo-RL.
        """
        super().__init__(config, *args, **kwargs)
        if self.optimizer is None:
            if dist.get_rank() == 0:
                log.warning("relibra plans no pass of a policy worker without an optimizer, such as that of a teacher")
            return
        section = config.get("relibra") or {}
        settings = PluginSettings.read(section, os.environ, default_job="nemo-rl", may_pack=False)
        if settings.mode is Mode.BALANCE:
            check_settings(config, slices_context_parallel_inputs=self.model_slices_context_parallel_inputs)
        self.passes = attach_job(settings, layers_of(self.model), self.model, self.optimizer)
        if self.passes.mover is not None:
            check_generation(config)
            # The default, dp_reshardable, stores optimizer state by place.
            self.mcore_state.cfg.checkpoint.dist_ckpt_optim_fully_reshardable = True

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as NeMo-RL does, each global batch under a plan of its own."""
        with self._plan_passes():
            return super().train(*args, **kwargs)

    def get_logprobs(self, *args: Any, **kwargs: Any) -> Any:
        """Compute log-probabilities as NeMo-RL does, under a plan."""
        with self._plan_passes():
            return super().get_logprobs(*args, **kwargs)

    def begin_train_step(self, *args: Any, **kwargs: Any) -> None:
        """Refuse NeMo-RL's single controller.

        Raises:
            Unsupported: always, in a worker that trains.
        """
        if self.passes.agent is not None:
            raise Unsupported(
                "relibra does not support NeMo-RL's single controller (begin_train_step): it runs passes over "
                "log-probabilities while gradients of a step add up, and experts must not move then. Use "
                "examples/run_grpo.py, or start the script without relibra"
            )
        super().begin_train_step(*args, **kwargs)

    @contextmanager
    def use_reference_model(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Swap in the reference as NeMo-RL does, with every expert where it lives now. Collective over all ranks.

        Its pass begins before the swap, because experts move with the optimizer's state, beside which the trained
        weights must be. It is planned from the history of the job, of which its own loads are a part.
        """
        with ExitStack() as swapped:
            self.passes.begin(Phase.RECOMPUTE)
            agent = self.passes.mover
            with nullcontext() if agent is None else agent.copying() as self._order_of_own:
                swapped.enter_context(super().use_reference_model(*args, **kwargs))
            self.passes.go_on_with_other_weights()
            with replace_attribute(self, "_has_reference", True):
                yield

    def _apply_state_dict_to_model(self, source_state_dict: Any, *args: Any, **kwargs: Any) -> None:
        agent = self.passes.mover
        with nullcontext() if agent is None else agent.restoring(self._order_of(agent, source_state_dict)):
            super()._apply_state_dict_to_model(source_state_dict, *args, **kwargs)

    def _order_of(self, agent: Agent, state_dict: Any) -> Snapshot:
        """Return the order of the experts in a state dict: the reference was loaded before the first reorder."""
        if state_dict is self.reference_state_dict:
            return agent.original_order
        assert self._order_of_own is not None
        return self._order_of_own

    def stream_weights_via_ipc_zmq(self, *args: Any, **kwargs: Any) -> None:
        """Send weights to the engines on these GPUs as NeMo-RL does, each expert from where it lives."""
        self._sends_names = True
        try:
            super().stream_weights_via_ipc_zmq(*args, **kwargs)
        finally:
            self._sends_names = False

    def _iter_params_with_optional_kv_scales(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Yield NeMo-RL's export, with each expert under its own name.

        A collective sends no names: its receivers know them from `prepare_refit_info`, in the order of that export. For
        these, every expert is at its original place while the export is read.
        """
        weights = super()._iter_params_with_optional_kv_scales(*args, **kwargs)
        return self.passes.export(weights) if self._sends_names else self.passes.read_at_original_places(weights)

    @contextmanager
    def _plan_passes(self) -> Iterator[None]:
        """Have every pass in the body planned, and end the last step."""
        if self.passes.agent is None:
            yield
            return
        iterate, run = policy_worker.get_microbatch_iterator, policy_worker.megatron_forward_backward
        batch = list[Callable[[], RankBatch]]()

        def get_microbatch_iterator(data: Any, cfg: Any, mbs: int, *args: Any, **kwargs: Any) -> Any:
            made = iterate(data, cfg, mbs, *args, **kwargs)
            batch[:] = [partial(rank_batch, data, self.passes.layers, mbs)]
            return made

        def megatron_forward_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._has_reference:
                phase = Phase.RECOMPUTE if kwargs.get("forward_only", False) else Phase.UPDATE
                self.passes.begin(phase, batch[0] if kwargs.get("use_router_replay", False) else None)
            with self.passes.in_schedules_of(megatron_train):
                return run(*args, **kwargs)

        with (
            replace_attribute(policy_worker, "get_microbatch_iterator", get_microbatch_iterator),
            replace_attribute(policy_worker, "megatron_forward_backward", megatron_forward_backward),
        ):
            yield
        self.passes.end()


def layers_of(model: Any) -> ModelLayers:
    """Return the layers of a built model as NeMo-RL's routing replay numbers them."""
    config = get_model_config(model)
    moe = set(router_replay._global_moe_layer_numbers(config))
    return ModelLayers(
        num_experts=config.num_moe_experts,
        top_k=config.moe_router_topk,
        is_moe=tuple(number in moe for number in range(1, config.num_layers + 1)),
    )


@ray.remote(runtime_env=get_runtime_env_for_policy_worker("megatron_policy_worker"))
class Worker(BalancedWorker):
    """The actor of the worker, as `worker_extension_cls_fqn` names it."""
