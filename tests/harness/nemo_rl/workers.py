"""NeMo-RL's policy worker for a tiny Qwen3-MoE, and batches as its driver shards them.

L layers, K top-k.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.training.setup import _update_model_config_funcs
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.vllm.utils import pad_and_align_routed_expert_indices
from nemo_rl.models.megatron.router_replay import validate_router_replay_config
from nemo_rl.models.policy.workers import megatron_policy_worker as policy_worker
from nemo_rl.utils.timer import Timer

from harness.tiny_qwen3_moe import OFF_ON_CPU, random_routes

RANKS = 2
GLOBAL_BATCH, NUM_GLOBAL_BATCHES = 8, 2
LENGTH, MULTIPLE = 24, 4


def configuration(model: Path, mode: str, *, replays: bool = True) -> dict[str, Any]:
    """Return the section `policy` of a recipe; the mode is `packed`, `dynamic` or `padded`."""
    return {
        "model_name": str(model),
        "train_global_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size": 2,
        "logprob_batch_size": 4,
        "make_sequence_length_divisible_by": MULTIPLE,
        "max_total_sequence_length": LENGTH,
        "router_replay": {"enabled": replays},
        "sequence_packing": {"enabled": mode == "packed", "algorithm": "modified_first_fit_decreasing"},
        "dynamic_batching": {"enabled": mode == "dynamic"},
        "generation": {"backend": "vllm"},
        "megatron_cfg": {
            "enabled": True,
            "tensor_model_parallel_size": 1,
            "sequence_parallel": False,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "empty_unused_memory_level": 0,
            "moe_per_layer_logging": False,
            "moe_token_dispatcher_type": "alltoall",
            "distributed_data_parallel_config": {"overlap_grad_reduce": False, "overlap_param_gather": False},
        },
    }


def build(worker: Any, config: dict[str, Any], *, init_optimizer: bool = True) -> None:
    """Stand in for `MegatronPolicyWorkerImpl.__init__`: set what it sets, with a model on the CPU."""
    validate_router_replay_config(config)
    worker.cfg = config
    worker._router_replay_enabled = policy_worker.router_replay_enabled(config)
    worker.rank = torch.distributed.get_rank()
    worker.timer = Timer()
    worker.dtype = torch.float32
    worker.sampling_params = worker.fp8_cfg = worker.defer_fp32_logits = worker.draft_model = None
    bridge = AutoBridge.from_hf_pretrained(config["model_name"])
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=True, average_in_collective=False
    )
    model_config = _provider(bridge, replays=worker._router_replay_enabled)
    seed()
    chunks = model_config.provide_distributed_model(
        ddp_config=ddp, wrap_with_ddp=True, use_cpu_initialization=True, init_model_with_meta_device=False
    )
    bridge.load_hf_weights(chunks)
    (worker.model,) = chunks
    optimizer_config = OptimizerConfig(
        optimizer="adam", lr=1e-3, clip_grad=1.0, params_dtype=torch.float32, use_distributed_optimizer=True
    )
    worker.optimizer = worker.scheduler = None
    if init_optimizer:
        worker.optimizer = get_megatron_optimizer(optimizer_config, chunks)
        worker.scheduler = OptimizerParamScheduler(
            worker.optimizer,
            init_lr=1e-3,
            max_lr=1e-3,
            min_lr=1e-3,
            lr_warmup_steps=0,
            lr_decay_steps=100,
            lr_decay_style="constant",
            start_wd=0.0,
            end_wd=0.0,
            wd_incr_steps=0,
            wd_incr_style="constant",
        )
    # As `setup_reference_model_state`: a copy by name of another model.
    generator = torch.Generator().manual_seed(5 + worker.rank)
    worker.reference_state_dict = {
        name: each + 0.02 * torch.randn(each.shape, generator=generator) if torch.is_tensor(each) else each
        for name, each in worker.model.state_dict().items()
    }
    _update_model_config_funcs(
        chunks,
        policy_worker.get_model_config(worker.model),
        ddp,
        worker.optimizer,
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )
    worker.megatron_bridge = bridge
    worker.megatron_cfg = SimpleNamespace(optimizer=optimizer_config, ddp=ddp, model=model_config)
    worker.dp_size = RANKS
    worker.should_disable_forward_pre_hook = worker._first_train_step_forward_pre_hook_disabled = False
    worker.delegate_pack_to_model = worker.delegate_mtp_loss_mask_to_model = False
    worker.model_slices_context_parallel_inputs = False
    worker.media_placeholder_token_id = None
    worker.optimizer_cpu_offload = False
    worker.offload_optimizer_for_logprob = worker.offload_optimizer_for_refit = True
    checkpoint = SimpleNamespace(dist_ckpt_optim_fully_reshardable=False, async_save=False)
    worker.mcore_state = SimpleNamespace(
        straggler_timer=None, cfg=SimpleNamespace(checkpoint=checkpoint, model=model_config)
    )


def _provider(bridge: Any, *, replays: bool) -> Any:
    provider = bridge.to_megatron_provider(load_weights=False)
    settings = dict.fromkeys(OFF_ON_CPU, False) | {
        "expert_model_parallel_size": RANKS,
        "expert_tensor_parallel_size": 1,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "sequence_parallel": False,
        "use_cpu_initialization": True,
        "bf16": False,
        "fp16": False,
        "params_dtype": torch.float32,
        "autocast_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "moe_enable_routing_replay": replays,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "none",
        "calculate_per_token_loss": True,
    }
    for name, value in settings.items():
        setattr(provider, name, value)
    provider.transformer_layer_spec = lambda config, **_: get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    provider.finalize()
    return provider


def seed() -> None:
    """Set all generators of this process to the same state."""
    torch.manual_seed(7)
    model_parallel_cuda_manual_seed(7)


def initialize_parallel_state() -> None:
    """Build megatron's groups, once."""
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS, expert_tensor_parallel_size=1)


def rollout(step: int, num_samples: int = GLOBAL_BATCH * NUM_GLOBAL_BATCHES) -> BatchedDataDict[Any]:
    """Return the train data of a step, with routes as vLLM returns them; vLLM lost some of every fifth sample."""
    rng = np.random.default_rng(100 + step)
    lengths = rng.integers(5, LENGTH - 3, num_samples)
    ids = np.zeros((num_samples, LENGTH), np.int64)
    routed = []
    for sample, length in enumerate(lengths.tolist()):
        ids[sample, :length] = rng.integers(1, 99, length)
        num_routes = length - 3 if sample % 5 == 2 else length - 1
        routed.append(
            pad_and_align_routed_expert_indices(
                SimpleNamespace(),
                SimpleNamespace(routed_experts=random_routes(rng, num_routes)),
                valid_length=length,
                padded_length=LENGTH,
                device="cpu",
                require_complete_routed_experts=True,
            ).to(torch.int8)
        )
    input_ids = torch.from_numpy(ids)
    return BatchedDataDict(
        input_ids=input_ids,
        input_lengths=torch.from_numpy(lengths),
        routed_experts=torch.stack(routed),
        sample_mask=torch.ones(num_samples),
        token_mask=(input_ids > 0).float(),
    )


def shards(data: Any, mode: str, batch_size: int | None, num_shards: int = RANKS, multiple: int = MULTIPLE) -> Any:
    """Return the data of every data-parallel rank, sharded as by `Policy.train` and `Policy.get_logprobs`."""
    keys = {"input_key": "input_ids", "input_lengths_key": "input_lengths"}
    if mode == "packed":
        arguments = {
            "algorithm": "modified_first_fit_decreasing",
            "max_tokens_per_microbatch": 48,
            "sequence_length_pad_multiple": multiple,
        }
        return data.shard_by_batch_size(num_shards, batch_size, sequence_packing_args=arguments | keys)[0]
    if mode == "dynamic":
        arguments = {"max_tokens_per_microbatch": 64, "sequence_length_round": multiple}
        return data.shard_by_batch_size(num_shards, batch_size, dynamic_batching_args=arguments | keys)[0]
    return data.shard_by_batch_size(num_shards, batch_size)
