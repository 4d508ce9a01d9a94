"""The `MegatronTrainRayActor` of miles on a rank, as `slime_actor` has that of slime."""

import functools
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness import frameworks
from harness.distributed import slime_actor, slime_code, slime_job
from harness.distributed.slime_actor import copied, nothing
from relibra.planning import Cluster

_MISSING = ("huggingface_hub", "megatron.bridge", "mooncake", "polars", "tokenizers", "triton")
"""Packages that modules of miles import, beside those of slime's."""


@functools.cache
def code() -> SimpleNamespace:
    """Return the modules of miles, ready to train on this rank. The process must end afterwards."""
    folder = frameworks.checkout("miles")
    assert folder is not None, frameworks.reason("miles")
    slime_code.import_from(folder, "miles", "miles_plugins", missing=slime_code.MISSING + _MISSING)
    at = "miles.backends.megatron_utils"
    modules = {
        "actor": f"{at}.actor",
        "model": f"{at}.model",
        "parallel": f"{at}.parallel",
        "initialize": f"{at}.initialize",
        "updating": f"{at}.update_weight.update_weight_from_distributed.mixin",
        "schedule": "slime.utils.dp_schedule",
        "reload": "miles.utils.reloadable_process_group",
        "replay": "miles.utils.replay_base",
        "groups": "miles.utils.distributed_utils",
        "replicas": "miles.utils.ft_utils.indep_dp",
    }
    slime = frameworks.checkout("slime")
    assert slime is not None, frameworks.reason("slime")
    sys.meta_path.insert(0, slime_code.Checkout(slime, "slime"))
    imported = SimpleNamespace(**{name: importlib.import_module(module) for name, module in modules.items()})
    slime_code.no_pinned_memory()
    torch.cuda.mem_get_info = lambda *_: (1 << 30, 1 << 30)
    manager = imported.replay.routing_replay_manager
    slime_actor.patch_routers(
        lambda topk: manager.get_topk_fn(topk, return_probs=True),
        lambda router: manager.register_to_module(router, "routing_replay"),
    )
    actor = imported.actor
    actor.ray = imported.updating.ray = SimpleNamespace(get=lambda each: each, put=lambda each: each)
    actor.torch_memory_saver = SimpleNamespace(disable=nullcontext, pause=nothing, resume=nothing)
    actor.load_hf_config = actor.load_tokenizer = nothing
    actor.dashboard_hooks = SimpleNamespace(register_train_actor=nothing)
    for name in ("log_rollout_data", "log_perf_data", "log_train_advantage_computation_event"):
        setattr(actor, name, nothing)
    actor.FTTestActionActorExecutor = SimpleNamespace(from_args=nothing)
    actor.train_dump_utils = SimpleNamespace(save_debug_train_data=nothing)
    for name in ("_initialize_distributed", "init_num_microbatches_calculator", "register_hf_config_aliases"):
        setattr(imported.initialize, name, nothing)
    model = imported.model
    model.get_optimizer_param_scheduler = lambda *_: SimpleNamespace(step=nothing, get_lr=lambda _: 0.0)
    model.DumperMegatronUtil = lambda *_, **__: SimpleNamespace(wrap_forward_step=lambda each: each, finalize=nothing)
    for name in ("dump_local_weight_checksums", "check_peak_gpu_memory_after_load", "check_model_hashes"):
        setattr(model, name, nothing)
    imported.updating.begin_weight_update = imported.updating.end_weight_update = nothing
    imported.updating.tqdm = lambda *_, **__: None
    imported.updating.convert_to_hf = slime_code.converting_experts(imported.updating.convert_to_hf)
    for module in (actor, model, imported.reload):
        for name in ("clear_memory", "print_memory"):
            setattr(module, name, nothing)
    actor.TrainRayActor.init = slime_actor.started
    imported.groups.init_gloo_group()
    return imported


class MilesActor:
    """One training process of miles; see `SlimeActor`."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, sharded: bool = False, role: str = "actor", **options: Any
    ) -> None:
        miles = self._miles = code()
        miles.replay.routing_replay_manager.replays = []  # those of another job in this process
        miles.replay.routing_replay_manager.enabled = role == "actor" and options.get("use_routing_replay", True)
        miles.actor.Timer().start_time.clear()
        torch.manual_seed(5)
        job = self.job = slime_job.built_job(cluster, sharded=sharded, is_zigzag=not options.get("allgather_cp"))
        if role == "critic":
            slime_job.become_critic(job)
        slime_job.write_config(folder, job.model)
        args = self.args = slime_job.arguments(job.config, folder, sharded=sharded, **options)
        vars(args).update(
            qkv_format="thd",
            megatron_to_hf_mode="raw",
            update_weight_transfer_mode="broadcast",
            critic_load="checkpoint",
            profile_target=[],
            lora_rank=0,
            global_batch_size=1,  # a default that the data of a rollout overrides
            use_dynamic_global_batch_size=False,
        )
        miles.model.get_args = miles.parallel.get_args = lambda: args
        miles.model.get_model = lambda *_, **__: job.chunks
        miles.model.get_megatron_optimizer = lambda **_: job.optimizer
        miles.model.load_checkpoint = lambda *_, **__: (0, 0)
        miles.actor.load_checkpoint = slime_job.loading_another(job)
        self.plain = object.__new__(miles.actor.MegatronTrainRayActor)
        self.plain._heartbeat, self.plain._rank = SimpleNamespace(bump=nothing), 0
        self.plain._indep_dp_store_addr = None
        with_ref = role == "actor"
        self.plain.init(args, role, with_ref=with_ref, indep_dp_info=miles.replicas.IndepDPInfo.create_trivial())
        self.plain.rollout_manager = mock.MagicMock()
        self.losses: list[Any] = []
        miles.model.log_train_step = self._log

    def train(self, rollout: int, num_steps: int) -> dict[str, Any]:
        """Train on a rollout; return what its passes over log-probabilities computed."""
        data = slime_job.rollout_data(self.job.model, rollout, num_steps, self._miles.schedule, self.args)
        data["total_lengths"] = [data["total_lengths"][place] for place in data["partition"]]
        data["num_rollouts"] = data["global_batch_sizes"]
        self._miles.actor.get_rollout_data = lambda *_, **__: (data, nullcontext())
        self.plain.train(rollout, None)
        return {key: torch.cat(data[key]) for key in ("log_probs", "ref_log_probs", "values") if key in data}

    def sent(self) -> dict[str, Tensor]:
        """Update the engines; return the weights that they got, on ranks that send them; those of a critic."""
        if self.plain.role == "critic":
            return slime_job.weights(self.job)
        updater, received = self.plain.weight_updater, dict[str, Tensor]()
        updater.rollout_engines, updater._group_name = [mock.MagicMock()], "none"
        updater._update_weight_implementation = lambda tensors, *_: received.update(copied(tensors))
        info = SimpleNamespace(
            rollout_engines=updater.rollout_engines,
            rollout_engine_lock=None,
            has_new_engines=False,
            engine_gpu_counts=None,
            engine_gpu_offsets=None,
        )
        self.plain.update_weights(info)
        return received

    def _log(self, *, loss_dict: dict[str, Any], grad_norm: float, **_: Any) -> dict[str, Any]:
        found = {f"train/{key}": torch.as_tensor(value).mean().item() for key, value in loss_dict.items()}
        self.losses.append(found | {"train/grad_norm": grad_norm})
        return {}
