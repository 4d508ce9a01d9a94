"""slime's `MegatronTrainRayActor` on a rank: its own code from `init` to `update_weights`, around a small GPT.

Stand-ins: Ray, the tokenizer, what builds and loads a model from a checkpoint, and what slime measures on GPUs. The
routers are patched as slime's images patch megatron-core.
"""

import functools
import inspect
import os
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe import moe_utils, router
from torch import Tensor

from harness.distributed import slime_code, slime_engines
from harness.distributed.slime_job import (
    arguments,
    become_critic,
    built_job,
    loading_another,
    rollout_data,
    weights,
    write_config,
)
from relibra.planning import Cluster


@functools.cache
def code() -> SimpleNamespace:
    """Return slime's modules, ready to train on this rank. The process must end afterwards."""
    imported = slime_code.imported()
    without_gpus(imported)
    ray = SimpleNamespace(get=lambda each: each)
    for module in (imported.actor, imported.from_distributed, imported.from_tensor, imported.slime_data):
        module.ray = ray
    imported.initialize._initialize_distributed = nothing
    imported.actor.TrainRayActor.init = started
    return imported


def without_gpus(imported: SimpleNamespace) -> None:
    """Replace what slime takes from GPUs, checkpoints and tokenizers, on a rank or in a process of Ray."""
    patch_routers(imported.replay.get_routing_replay_compute_topk, imported.replay.register_routing_replay)
    os.environ["ROUTING_REPLAY_STAGE"] = "fallthrough"
    imported.actor.torch_memory_saver = SimpleNamespace(disable=nullcontext, pause=nothing, resume=nothing)
    imported.actor.AutoTokenizer = SimpleNamespace(from_pretrained=nothing)
    imported.actor.AutoConfig = SimpleNamespace(from_pretrained=nothing)
    imported.initialize.np = SimpleNamespace(__version__="1.26", random=np.random)  # slime refuses numpy 2
    imported.initialize.init_num_microbatches_calculator = nothing
    imported.model.get_optimizer_param_scheduler = lambda *_: SimpleNamespace(step=nothing, get_lr=lambda _: 0.0)
    imported.model.tqdm = lambda *_, **__: SimpleNamespace(update=nothing, close=nothing)
    imported.train_metrics.log_perf_data = imported.train_metrics.log_perf_data_raw = nothing
    for module in (imported.actor, imported.model, imported.reload):
        for name in ("clear_memory", "print_memory"):
            setattr(module, name, nothing)
    imported.reload.available_memory = lambda: {"free_GB": 99}


def nothing(*_: Any, **__: Any) -> None:
    """Stand in for a function without a result."""


def started(self: Any, args: Any, role: str, with_ref: bool, with_opd_teacher: bool) -> None:
    """Start a training process whose process groups exist already."""
    self.args, self.role, self.with_ref, self.with_opd_teacher = args, role, with_ref, with_opd_teacher


def patch_routers(replaying: Callable[..., Any], register: Callable[..., Any]) -> None:
    """Patch megatron-core as slime's `docker/patch/latest/megatron.patch` and the fork of miles do, to replay routing.

    Args:
        replaying: makes the replaying function of a router's top-k.
        register: called with every router.
    """
    source = textwrap.dedent(inspect.getsource(moe_utils.topk_routing_with_score_function))
    before = '    if score_function == "softmax":'
    assert source.count(before) == 1
    patch = "    compute_topk = replaying(compute_topk)\n"
    names = vars(moe_utils) | {"replaying": replaying}
    exec(source.replace(before, patch + before), names)
    router.topk_routing_with_score_function = names["topk_routing_with_score_function"]
    plain = router.TopKRouter.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        register(self)

    router.TopKRouter.__init__ = build


class SlimeActor:
    """One training process of slime.

    Args:
        cluster: the ranks.
        folder: shared by all ranks; gets the configuration of a checkpoint of Hugging Face.
        role: actor or critic.
        options: arguments of slime.
    """

    def __init__(
        self, cluster: Cluster, folder: Path, *, sharded: bool = False, role: str = "actor", **options: Any
    ) -> None:
        replays = role == "actor" and options.get("use_routing_replay", True)
        os.environ["ENABLE_ROUTING_REPLAY"] = str(int(replays))  # as its group of actors
        slime = self._slime = code()
        slime.replay.RoutingReplay.all_routing_replays = []  # those of another job in this process
        slime.actor.Timer().start_time.clear()
        torch.manual_seed(5)
        job = self.job = built_job(cluster, sharded=sharded, is_zigzag=not options.get("allgather_cp"))
        if role == "critic":
            become_critic(job)
        write_config(folder, job.model)
        args = self.args = arguments(job.config, folder, sharded=sharded, **options)
        slime.model.get_args = lambda: args
        slime.model.get_model = lambda *_: job.chunks
        slime.model.get_megatron_optimizer = lambda **_: job.optimizer
        slime.model.load_checkpoint = lambda *_, **__: (0, 0)
        slime.actor.load_checkpoint = loading_another(job)
        self.plain = object.__new__(slime.actor.MegatronTrainRayActor)
        self.plain.init(args, role, with_ref=role == "actor")
        self.engines = [slime_engines.Engine() for _ in range(2)]
        self.plain.rollout_manager = SimpleNamespace(
            get_updatable_engines_and_lock=_remote(lambda: (self.engines, None, 2, [2, 2], None, None)),
            clear_updatable_num_new_engines=_remote(nothing),
        )
        self.losses: list[Any] = []
        slime.model.logging_utils.log = lambda _, found, **__: self._log(found)

    def train(self, rollout: int, num_steps: int) -> dict[str, Any]:
        """Train on a rollout; return what its passes over log-probabilities computed."""
        data = rollout_data(self.job.model, rollout, num_steps, self._slime.schedule, self.args)
        rank, size = (getattr(parallel_state, f"get_data_parallel_{each}")() for each in ("rank", "world_size"))
        boxes = [SimpleNamespace(inner=data if each == rank else None) for each in range(size)]
        self.plain.train(rollout, boxes)
        return {key: torch.cat(data[key]) for key in ("log_probs", "ref_log_probs", "values") if key in data}

    def _log(self, found: dict[str, Any]) -> None:
        of_role = {name.replace("train/critic-", "train/"): value for name, value in found.items()}
        if "train/grad_norm" in of_role:
            self.losses.append(of_role)

    def sent(self) -> dict[str, Tensor]:
        """Update the engines; return the weights that they got, on ranks that send them or whose engine is here.

        A critic sends none; of it, return the weights of this rank.
        """
        if self.plain.role == "critic":
            return weights(self.job)
        updater, received = self.plain.weight_updater, dict[str, Tensor]()
        if isinstance(updater, self._slime.from_distributed.UpdateWeightFromDistributed):
            updater.connect_rollout_engines = nothing
            updater._is_pp_src_rank, updater._group_name = is_first_of_stage(), "none"
            updater.rollout_engines = self.engines
            updater._update_bucket_weights_from_distributed = lambda tensors, **_: received.update(copied(tensors))
        self.plain.update_weights()
        if self.args.update_weight_transport == "disk":
            folder = Path(self.args.update_weight_disk_dir, f"weight_v{updater.weight_version:06d}")
            received = slime_engines.loaded(folder)
        elif self.args.colocate:
            engine = self.engines[dist.get_rank() // 2]
            received = copied(engine.received.items())
            engine.received.clear()
        return received


def _remote(function: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(remote=function)


def is_first_of_stage() -> bool:
    """Return whether this rank sends the weights of its pipeline stage."""
    of_data = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    return of_data == parallel_state.get_tensor_model_parallel_rank() == 0


def copied(tensors: Any) -> dict[str, Tensor]:
    """Return copies of a stream of weights."""
    return {name: each.detach().clone() for name, each in tensors}
