"""Workers of SkyRL for a tiny Qwen3-MoE, and batches as its trainer makes them.

B samples, L layers, K top-k.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from harness import bridge_on_cpu
from harness.tiny_qwen3_moe import OFF_ON_CPU, random_routes
from harness.verl.engines import RANKS, seed

NUM_SAMPLES = 4
MAX_PROMPT, MAX_RESPONSE = 6, 8


def configuration(
    model: Path, *of_plug_in: str, max_tokens: int = -1, replays: bool = True, is_adapted: bool = False
) -> Any:
    """Return SkyRL's configuration.

    Args:
        model: the folder of the model.
        of_plug_in: more arguments of SkyRL's command line.
        max_tokens: the limit of a micro-batch.
        replays: whether the routing of the rollout is replayed.
        is_adapted: whether LoRA is trained, with one adapter for all experts of a layer.
    """
    from skyrl.train.config import SkyRLTrainConfig

    from harness import bridge_lora

    bridge_lora.install()

    megatron = "trainer.policy.megatron_config"
    whole = SkyRLTrainConfig.from_cli_overrides(
        [
            "trainer.strategy=megatron",
            f"trainer.policy.model.path={model}",
            f"{megatron}.expert_model_parallel_size={RANKS}",
            f"{megatron}.expert_tensor_parallel_size=1",
            f"{megatron}.moe_enable_routing_replay={str(replays).lower()}",
            f"{megatron}.moe_grouped_gemm={str(is_adapted).lower()}",
            f"{megatron}.optimizer_config_kwargs.bf16=false",
            f"{megatron}.optimizer_config_kwargs.params_dtype=float32",
            "trainer.policy.optimizer_config.lr=1e-3",
            f"trainer.policy.model.lora.rank={4 * is_adapted}",
            "trainer.bf16=false",
            "trainer.flash_attn=false",
            "trainer.gradient_checkpointing=false",
            "trainer.micro_forward_batch_size_per_gpu=1",
            "trainer.micro_train_batch_size_per_gpu=2",
            f"trainer.max_tokens_per_microbatch={max_tokens}",
            "trainer.algorithm.use_kl_loss=false",
            "generator.inference_engine.enable_prefix_caching=false",
            *of_plug_in,
        ]
    )
    whole.trainer.policy.megatron_config.transformer_config_kwargs |= dict.fromkeys(OFF_ON_CPU, False) | {
        "moe_grouped_gemm": is_adapted,
        "use_cpu_initialization": True,
        "transformer_layer_spec": bridge_on_cpu.layer_spec,
    }
    return whole


def build(worker: type[Any], rank: int, model: Path, **options: Any) -> Any:
    """Build a worker and its model as SkyRL's `PPORayActorGroup` and trainer do."""
    from skyrl.backends.skyrl_train.weight_sync import weight_senders

    weight_senders.build_trainer_engine = KeptWeights
    whole = configuration(model, **options)
    built = _built(worker, rank, model, whole)
    asyncio.run(built.init_weight_sync_state(NoEngines(), whole.generator.inference_engine))
    return built


def build_reference(worker: type[Any], rank: int, model: Path) -> Any:
    """Build a worker of the reference and its model, which is that of the policy."""
    whole = configuration(model, replays=False)
    whole.trainer.ref.megatron_config = whole.trainer.policy.megatron_config
    return _built(worker, rank, model, whole)


def _built(worker: type[Any], rank: int, model: Path, whole: Any) -> Any:
    from megatron.core.transformer.moe.router_replay import RouterReplay

    RouterReplay.global_router_replay_instances.clear()  # a worker before left them; a job has a process for each
    built = worker(
        cfg=whole.trainer,
        world_size=RANKS,
        rank=rank,
        local_rank=rank,
        master_addr="127.0.0.1",
        master_port=1,
        sequence_parallel_size=1,
    )
    built.init_worker_process_group()
    seed()
    built.init_model(str(model))
    return built


class NoEngines:
    """SkyRL's client of the rollout, without a rollout."""

    server_urls: tuple[str, ...] = ()
    data_parallel_size = 1

    async def get_world_size(self) -> tuple[int, None]:
        """Return the size of the rollout."""
        return 1, None


class KeptWeights:
    """SkyRL's engine for the weight sync, which keeps what it would send to vLLM.

    Args:
        source_factory: SkyRL's function that makes the source of weights.
    """

    skyrl_handles_prefix_cache_reset = True
    skyrl_force_disable_expandable_segments = False
    skyrl_empty_cache_after_send = False

    def __init__(self, *, source_factory: Callable[[torch.dtype, str], Any], **_: Any) -> None:
        self._source = source_factory(torch.float32, "nccl")
        self.kept: dict[str, torch.Tensor] = {}

    def send_weights(self) -> None:
        """Keep the weights as a rank of vLLM does: it gets names and shapes first, and then tensors without names."""
        told = self._source.metadata()
        self.kept = {}
        for each, (_, tensor) in zip(told, self._source, strict=True):
            assert each.shape == tuple(tensor.shape), each
            self.kept[each.name] = tensor.clone()


def batch(rank: int, step: int, *, has_routes: bool = True) -> Any:
    """Return the batch of one data-parallel rank, made by SkyRL's own functions from a rollout."""
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors, make_router_padding_mask

    rng = np.random.default_rng(100 * step + rank)
    prompts = [rng.integers(2, 90, rng.integers(2, MAX_PROMPT + 1)).tolist() for _ in range(NUM_SAMPLES)]
    # Both ranks have a longest sample, because SkyRL pads all samples of a step alike before it shards them.
    sizes = [MAX_RESPONSE, *rng.integers(3, MAX_RESPONSE + 1, NUM_SAMPLES - 1)]
    prompts[0] = (prompts[0] * MAX_PROMPT)[:MAX_PROMPT]
    responses = [rng.integers(2, 90, size).tolist() for size in sizes]
    routes = [
        random_routes(rng, len(prompt) + len(response) - 1).astype(np.uint8)
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    sequences, attention, response_mask, _, loss_mask, log_probs, routed, *_ = (
        convert_prompts_responses_to_batch_tensors(
            0,
            prompts,
            responses,
            [[0.0] * len(each) for each in responses],
            [[1] * len(each) for each in responses],
            [[-1.0] * len(each) for each in responses],
            routes if has_routes else None,
        )
    )
    advantages = torch.from_numpy(rng.normal(size=tuple(loss_mask.shape)).astype(np.float32)) * loss_mask / 10
    made = TrainingInputBatch(
        {
            "sequences": sequences,
            "attention_mask": attention,
            "response_mask": response_mask,
            "loss_mask": loss_mask,
            "rollout_logprobs": log_probs,
            "rollout_expert_indices": routed,
            "router_padding_mask": make_router_padding_mask(attention, [len(each) for each in routes]),
            "advantages": advantages,
            "action_log_probs": torch.zeros_like(loss_mask),
            "base_action_log_probs": torch.zeros_like(loss_mask),
        }
    )
    made.metadata = {"response_length": loss_mask.shape[1]}
    return made


def infer(worker: Any, data: Any) -> torch.Tensor:
    """Run the pass over old log-probabilities, and put them into the batch as SkyRL's trainer does."""
    outputs = worker.forward(data).loss_fn_outputs
    data["action_log_probs"] = torch.tensor([each["logprobs"] for each in outputs])
    return data["action_log_probs"]


def update(worker: Any, data: Any) -> tuple[float, float]:
    """Run one update; return its loss and the norm of its gradients."""
    metrics = worker.forward_backward(data).metrics
    return float(metrics["policy_loss"]), float(worker.optim_step())


def sent(worker: Any) -> dict[str, torch.Tensor]:
    """Return what SkyRL sends to the rollout."""
    engine_config = SimpleNamespace(enable_prefix_caching=False)
    asyncio.run(worker.broadcast_to_inference_engines(None, engine_config))
    kept: dict[str, torch.Tensor] = worker._weight_sync_engine.kept
    return kept


def offload_and_back(worker: Any) -> None:
    """Move everything to the host and back, as a colocated job does between steps."""
    worker.offload_to_cpu()
    worker.backload_to_gpu()
