"""slime's `MegatronTrainRayActor` on a rank: its own code from `init` to `update_weights`, around a small GPT.

Stand-ins: Ray, the tokenizer, what builds and loads a model from a checkpoint, and what slime measures on GPUs. The
routers are patched as slime's images patch megatron-core.
"""

import functools
import inspect
import json
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
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.moe import moe_utils, router
from torch import Tensor

from harness import packed_attention
from harness.distributed import slime_code, slime_engines
from harness.distributed.gpt_job import GptJob
from harness.distributed.gpt_model import IS_MOE, VOCABULARY
from relibra.planning import Cluster, Model

SAMPLES, LONGEST = 4, 12
"""Samples of each rank in a rollout, and the tokens of the longest one."""
MULTIPLE = 4


class Arguments(SimpleNamespace):
    """slime's arguments; an option that is not named is off."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@functools.cache
def code() -> SimpleNamespace:
    """Return slime's modules, ready to train on this rank. The process must end afterwards."""
    imported = slime_code.imported()
    packed_attention.install()
    patch_routers(imported.replay.get_routing_replay_compute_topk, imported.replay.register_routing_replay)
    os.environ.update(ENABLE_ROUTING_REPLAY="1", ROUTING_REPLAY_STAGE="fallthrough")
    ray = SimpleNamespace(get=lambda each: each)
    for module in (imported.actor, imported.from_distributed, imported.from_tensor, imported.slime_data):
        module.ray = ray
    imported.actor.torch_memory_saver = SimpleNamespace(disable=nullcontext, pause=nothing, resume=nothing)
    imported.actor.AutoTokenizer = SimpleNamespace(from_pretrained=nothing)
    imported.actor.AutoConfig = SimpleNamespace(from_pretrained=nothing)
    imported.initialize.np = SimpleNamespace(__version__="1.26", random=np.random)  # slime refuses numpy 2
    imported.initialize._initialize_distributed = imported.initialize.init_num_microbatches_calculator = nothing
    imported.model.get_optimizer_param_scheduler = lambda *_: SimpleNamespace(step=nothing, get_lr=lambda _: 0.0)
    imported.model.tqdm = lambda *_, **__: SimpleNamespace(update=nothing, close=nothing)
    imported.train_metrics.log_perf_data = nothing
    for module in (imported.actor, imported.model, imported.reload):
        for name in ("clear_memory", "print_memory"):
            setattr(module, name, nothing)
    imported.reload.available_memory = lambda: {"free_GB": 99}
    imported.actor.TrainRayActor.init = started
    return imported


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
        options: arguments of slime.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, sharded: bool = False, **options: Any) -> None:
        slime = self._slime = code()
        slime.replay.RoutingReplay.all_routing_replays = []  # those of another job in this process
        slime.actor.Timer().start_time.clear()
        torch.manual_seed(5)
        job = self.job = built_job(cluster, sharded=sharded)
        write_config(folder, job.model)
        args = self.args = arguments(job, folder, sharded=sharded, **options)
        slime.model.get_args = lambda: args
        slime.model.get_model = lambda *_: job.chunks
        slime.model.get_megatron_optimizer = lambda **_: job.optimizer
        slime.model.load_checkpoint = lambda *_, **__: (0, 0)
        slime.actor.load_checkpoint = loading_another(job)
        self.plain = object.__new__(slime.actor.MegatronTrainRayActor)
        self.plain.init(args, "actor", with_ref=True)
        self.engines = [slime_engines.Engine() for _ in range(2)]
        self.plain.rollout_manager = SimpleNamespace(
            get_updatable_engines_and_lock=_remote(lambda: (self.engines, None, 2, [2, 2], None, None)),
            clear_updatable_num_new_engines=_remote(nothing),
        )
        self.losses: list[Any] = []
        slime.model.logging_utils.log = lambda _, found, **__: self._log(found)

    def train(self, rollout: int, num_steps: int) -> dict[str, Any]:
        """Train on a rollout; return what its passes over log-probabilities computed."""
        data = rollout_data(self.job.model, rollout, num_steps, self._slime.schedule)
        rank, size = (getattr(parallel_state, f"get_data_parallel_{each}")() for each in ("rank", "world_size"))
        boxes = [SimpleNamespace(inner=data if each == rank else None) for each in range(size)]
        self.plain.train(rollout, boxes)
        return {key: torch.cat(data[key]) for key in ("log_probs", "ref_log_probs") if key in data}

    def _log(self, found: dict[str, Any]) -> None:
        if "train/loss" in found:
            self.losses.append(found)

    def sent(self) -> dict[str, Tensor]:
        """Update the engines; return the experts that they got, on ranks whose engine is here."""
        updater, received = self.plain.weight_updater, dict[str, Tensor]()
        if not self.args.colocate:
            updater.connect_rollout_engines = nothing
            updater._is_pp_src_rank, updater._group_name = dist.get_rank() == 0, "none"
            updater.rollout_engines = self.engines
            updater._update_bucket_weights_from_distributed = lambda tensors, **_: received.update(copied(tensors))
        self.plain.update_weights()
        if self.args.colocate:
            engine = self.engines[dist.get_rank() // 2]
            received = copied(engine.received.items())
            engine.received.clear()
        return received


def built_job(cluster: Cluster, *, sharded: bool) -> GptJob:
    """Return a model whose routers slime's replay can take over, and its optimizer."""
    # slime's train cannot run a second rollout with overlapped reductions or gathers.
    job = GptJob(
        cluster, sharded=sharded, overlapped=False, grouped=True, clip_grad=0.0, moe_enable_routing_replay=False
    )
    job.config.no_sync_func = None
    for parameter in (each for chunk in job.chunks for each in chunk.parameters()):
        # As Transformer Engine marks them: those of experts are no duplicates of those on other tensor-parallel ranks.
        is_of_expert = not getattr(parameter, "allreduce", True)
        parameter.tensor_model_parallel = is_of_expert or getattr(parameter, "tensor_model_parallel", False)
        parameter.partition_dim, parameter.partition_stride = getattr(parameter, "partition_dim", 0), 1
    return job


def loading_another(job: GptJob) -> Callable[..., tuple[int, int]]:
    """Return a function that loads the checkpoint of another model into the modules."""

    def load(*_: Any, **__: Any) -> tuple[int, int]:
        with torch.no_grad():
            for parameter in job.models[0].parameters():
                parameter.mul_(1 + 1 / 16)
        return 0, 0

    return load


def _remote(function: Callable[..., Any]) -> SimpleNamespace:
    return SimpleNamespace(remote=function)


def copied(tensors: Any) -> dict[str, Tensor]:
    """Return copies of the experts in a stream of weights."""
    return {name: each.detach().clone() for name, each in tensors if ".mlp.experts." in name}


def write_config(folder: Path, model: Model) -> None:
    """Write the configuration from which relibra reads the layers."""
    config = {
        "num_hidden_layers": len(IS_MOE),
        "mlp_only_layers": [layer for layer, is_moe in enumerate(IS_MOE) if not is_moe],
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.top_k,
    }
    if dist.get_rank() == 0:
        (folder / "hf" / "config.json").write_text(json.dumps(config))
    dist.barrier()


def arguments(job: GptJob, folder: Path, *, sharded: bool, **options: Any) -> Arguments:
    """Return slime's arguments for a job with the replay of the rollout's routing and a reference model."""
    given: dict[str, Any] = {
        "distributed_timeout_minutes": 1,
        "num_gpus_per_node": 4,
        "actor_num_nodes": 2,
        "actor_num_gpus_per_node": 2,
        "sglang_ep_size": 1,
        "rank": dist.get_rank(),
        "seed": 5,
        "hf_checkpoint": str(folder / "hf"),
        "load": "checkpoint",
        "ref_load": "reference",
        "model_name": "qwen3moe",
        "vocab_size": VOCABULARY,
        "num_experts": job.config.num_moe_experts,
        "hidden_size": job.config.hidden_size,
        "num_attention_heads": job.config.num_attention_heads,
        "num_query_groups": job.config.num_query_groups,
        "kv_channels": job.config.kv_channels,
        "seq_length": LONGEST,
        "micro_batch_size": 1,
        "use_distributed_optimizer": sharded,
        "sequence_parallel": job.config.sequence_parallel,
        "use_routing_replay": True,
        "use_rollout_routing_replay": True,
        "allgather_cp": False,
        "data_pad_size_multiplier": MULTIPLE,
        "compute_advantages_and_returns": True,
        "advantage_estimator": "grpo",
        "loss_type": "policy_loss",
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "entropy_coef": 0.01,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "kl_loss_type": "low_var_kl",
        "kl_coef": 0.0,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "log_probs_chunk_size": -1,
        "calculate_per_token_loss": False,
        "use_dynamic_batch_size": True,
        "update_weights_interval": 1,
        "update_weight_mode": "full",
        "update_weight_transport": "nccl",
        "update_weight_buffer_size": 1 << 16,
        "update_weight_start_version": 0,
        "num_rollout": 9,
        "check_for_nan_in_loss_and_grad": True,
        "train_env_vars": {},
    }
    return Arguments(**(vars(OptimizerConfig()) | given | options))


def rollout_data(model: Model, rollout: int, num_steps: int, schedule: Any) -> dict[str, Any]:
    """Return this rank's data of a rollout, dealt by slime's own schedule, as the rollout manager hands it over."""
    size = parallel_state.get_data_parallel_world_size()
    rng = np.random.default_rng(rollout)
    lengths = rng.integers(5, LONGEST + 1, SAMPLES * size).tolist()
    parts, micro_batches, num_micro_batches, batch_sizes = schedule.build_dp_schedule(
        SimpleNamespace(
            use_dynamic_batch_size=True, max_tokens_per_gpu=LONGEST, balance_by_flops=False, balance_data=False
        ),
        {"dp_size": size, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1},
        lengths,
        global_batch_size=SAMPLES * size // num_steps,
        rollout_indices=list(range(len(lengths))),
    )
    rank = parallel_state.get_data_parallel_rank()
    chances_LE = rng.random((len(IS_MOE), model.num_experts)) ** 4 + 0.01
    samples = [_sample(model, 1000 * rollout + place, lengths[place], chances_LE) for place in parts[rank]]
    return {key: [sample[key] for sample in samples] for key in samples[0]} | {
        "partition": parts[rank],
        "total_lengths": lengths,
        "rollout_mask_sums": torch.tensor([sample["loss_masks"].sum() for sample in samples]),
        "micro_batch_indices": micro_batches[rank],
        "num_microbatches": num_micro_batches,
        "global_batch_sizes": batch_sizes,
    }


def _sample(model: Model, seed: int, length: int, chances_LE: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    routes = np.zeros((length - 1, len(IS_MOE), model.top_k), np.int32)
    for token in range(length - 1):
        for layer in np.flatnonzero(IS_MOE):
            chances_E = chances_LE[layer] / chances_LE[layer].sum()
            routes[token, layer] = rng.choice(model.num_experts, model.top_k, replace=False, p=chances_E)
    return {
        "tokens": torch.from_numpy(rng.integers(1, VOCABULARY, length)),
        "loss_masks": torch.ones(length - 2, dtype=torch.int32),
        "response_lengths": length - 2,
        "rewards": float(rng.normal()),
        "rollout_routed_experts": torch.from_numpy(routes),
    }
