"""The job of a training process of slime: a small GPT, slime's arguments, and the data of rollouts."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import OptimizerConfig

from harness import packed_attention
from harness.distributed import checkpoints
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


def built_job(cluster: Cluster, *, sharded: bool, is_zigzag: bool = True) -> GptJob:
    """Return a model whose routers slime's replay can take over, and its optimizer.

    Args:
        cluster: the ranks.
        sharded: whether the optimizer is the distributed one.
        is_zigzag: how context parallelism cuts sequences; see `packed_attention`.
    """
    packed_attention.install(is_zigzag=is_zigzag)
    job = GptJob(
        cluster,
        sharded=sharded,
        overlapped=False,  # slime's train cannot run a second rollout with overlapped reductions or gathers
        grouped=True,
        clip_grad=0.0,
        moe_enable_routing_replay=False,
        variable_seq_lengths=True,
        # As megatron's own arguments demand of two stages with several chunks each.
        overlap_p2p_comm=parallel_state.get_virtual_pipeline_model_parallel_world_size() is not None,
    )
    job.config.no_sync_func = None
    for parameter in (each for chunk in job.chunks for each in chunk.parameters()):
        # As Transformer Engine marks all parameters.
        parameter.tensor_model_parallel = getattr(parameter, "tensor_model_parallel", False)
        parameter.partition_dim, parameter.partition_stride = getattr(parameter, "partition_dim", 0), 1
    return job


def become_critic(job: GptJob) -> None:
    """Have the model compute a value for each token: the first logit stands in for the layer of a critic."""
    for model in job.models:
        model.register_forward_hook(lambda *of_pass: of_pass[-1][..., :1])


def weights(job: GptJob) -> dict[str, torch.Tensor]:
    """Return copies of this rank's weights."""
    parameters = (each for index, model in enumerate(job.models) for each in model.named_parameters(f"{index}"))
    return {name: parameter.detach().clone() for name, parameter in parameters}


def loading_another(job: GptJob) -> Callable[..., tuple[int, int]]:
    """Return a function that loads the checkpoint of another model into the modules."""

    def load(*_: Any, **__: Any) -> tuple[int, int]:
        with torch.no_grad():
            for parameter in (each for model in job.models for each in model.parameters()):
                parameter.mul_(1 + 1 / 16)
        return 0, 0

    return load


def shared_folder() -> Path:
    """Collective: return a new folder, the same one on all ranks, with an empty checkpoint of Hugging Face in it."""
    folder = checkpoints.shared_folder()
    (folder / "hf").mkdir(exist_ok=True)
    return folder


def write_config(folder: Path, model: Model) -> None:
    """Collective over all ranks: write the configuration from which relibra reads the layers."""
    if dist.get_rank() == 0:
        (folder / "hf" / "config.json").write_text(json.dumps(config_of(model)))
    dist.barrier()


def config_of(model: Model) -> dict[str, Any]:
    """Return what the `config.json` of a checkpoint says about the layers."""
    return {
        "num_hidden_layers": len(IS_MOE),
        "mlp_only_layers": [layer for layer, is_moe in enumerate(IS_MOE) if not is_moe],
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.top_k,
    }


def arguments(config: Any, folder: Path, *, sharded: bool, **options: Any) -> Arguments:
    """Return slime's arguments for a job with the replay of the rollout's routing and a reference model.

    Args:
        config: the TransformerConfig of the model.
        folder: has a checkpoint of Hugging Face.
        sharded: whether the optimizer is the distributed one.
        options: more arguments.
    """
    given: dict[str, Any] = {
        "distributed_timeout_minutes": 1,
        "num_gpus_per_node": 4,
        "actor_num_nodes": 2,
        "actor_num_gpus_per_node": 2,
        "sglang_ep_size": 1,
        "sglang_pp_size": 1,
        "sglang_moe_dp_size": 1,
        "sglang_ep_num_redundant_experts": 0,
        "sglang_init_expert_location": "trivial",
        "rank": dist.get_rank() if dist.is_initialized() else 0,
        "seed": 5,
        "hf_checkpoint": str(folder / "hf"),
        "load": "checkpoint",
        "ref_load": "reference",
        "model_name": "qwen3moe",
        "vocab_size": VOCABULARY,
        "num_experts": config.num_moe_experts,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_query_groups": config.num_query_groups,
        "kv_channels": config.kv_channels,
        "tensor_model_parallel_size": config.tensor_model_parallel_size,
        "context_parallel_size": config.context_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
        "seq_length": LONGEST,
        "micro_batch_size": 1,
        "use_distributed_optimizer": sharded,
        "sequence_parallel": config.sequence_parallel,
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
        "update_weight_disk_dir": str(folder),
        "update_weight_buffer_size": 1 << 16,
        "update_weight_start_version": 0,
        "num_rollout": 9,
        "check_for_nan_in_loss_and_grad": True,
        "train_env_vars": {},
    }
    return Arguments(**(vars(OptimizerConfig()) | given | options))


def rollout_data(model: Model, rollout: int, num_steps: int, schedule: Any, args: Arguments) -> dict[str, Any]:
    """Return this rank's data of a rollout, dealt by slime's own schedule, as the rollout manager hands it over."""
    parallel = {
        "dp_size": parallel_state.get_data_parallel_world_size(),
        "cp_size": parallel_state.get_context_parallel_world_size(),
        "vpp_size": parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "microbatch_group_size_per_vp_stage": parallel_state.get_pipeline_model_parallel_world_size(),
    }
    data = dealt(model, rollout, num_steps, schedule, parallel, parallel_state.get_data_parallel_rank())
    if not args.use_rollout_routing_replay:
        del data["rollout_routed_experts"]
    return data


def dealt(
    model: Model, rollout: int, num_steps: int, schedule: Any, parallel: dict[str, int], rank: int
) -> dict[str, Any]:
    """Return the data of one data-parallel rank; `parallel` is the actor's `train_parallel_config`."""
    size = parallel["dp_size"]
    lengths, samples = samples_of(model, rollout, size)
    parts, micro_batches, num_micro_batches, batch_sizes = schedule.build_dp_schedule(
        SimpleNamespace(
            use_dynamic_batch_size=True, max_tokens_per_gpu=LONGEST, balance_by_flops=False, balance_data=False
        ),
        parallel,
        lengths,
        global_batch_size=SAMPLES * size // num_steps,
        rollout_indices=list(range(len(lengths))),
    )
    samples = [samples[place] for place in parts[rank]]
    return {key: [sample[key] for sample in samples] for key in samples[0]} | {
        "partition": parts[rank],
        "total_lengths": lengths,
        "rollout_mask_sums": torch.tensor([sample["loss_masks"].sum() for sample in samples]),
        "micro_batch_indices": micro_batches[rank],
        "num_microbatches": num_micro_batches,
        "global_batch_sizes": batch_sizes,
    }


def samples_of(model: Model, rollout: int, size: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the samples of a rollout for `size` data-parallel ranks, and the tokens of each."""
    rng = np.random.default_rng(rollout)
    lengths = rng.integers(5, LONGEST + 1, SAMPLES * size).tolist()
    chances_LE = rng.random((len(IS_MOE), model.num_experts)) ** 4 + 0.01
    return lengths, [_sample(model, 1000 * rollout + place, length, chances_LE) for place, length in enumerate(lengths)]


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
