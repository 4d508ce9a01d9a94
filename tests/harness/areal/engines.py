"""Engines of AReaL for a tiny Qwen3-MoE, and batches as its trainer hands them over."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from areal.engine.megatron_engine import MegatronEngine

from harness.skyrl.workers import RANKS, seed
from harness.tiny_qwen3_moe import random_routes
from harness.trained import ADAM_EPS

NUM_SAMPLES, MAX_LENGTH = 4, 12
MAX_TOKENS = 24

__all__ = ["batch", "build", "generate", "infer", "sent", "update"]


class PausedMemory:
    """Stands in for torch_memory_saver: while memory is paused, nothing is left of an engine's weights and states."""

    def __init__(self) -> None:
        self.engine: Any = None
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pause(self) -> None:
        """Take the tensors of the engine away."""
        optimizers = [each.optimizer for each in self.engine.optimizer.chained_optimizers]
        held = [each.data for model in self.engine.model for each in model.parameters()]
        held += [each.data for one in optimizers for group in one.param_groups for each in group["params"]]
        held += [each for one in optimizers for of_one in one.state.values() for each in of_one.values()]
        self._kept = [(each, each.clone()) for each in held if torch.is_tensor(each) and each.is_floating_point()]
        for each, _ in self._kept:
            each.fill_(torch.nan)

    def resume(self) -> None:
        """Bring them back."""
        for each, kept in self._kept:
            each.copy_(kept)


def configuration(model: Path, bridge_type: str = "megatron-bridge", role: str = "actor") -> Any:
    """Return a section of AReaL's configuration.

    Args:
        model: the folder of the model.
        bridge_type: the converter of weights; AReaL's default is `mbridge`.
        role: the section: actor or ref.
    """
    from areal.api.cli_args import MegatronEngineConfig, MicroBatchSpec, OptimizerConfig, PPOActorConfig

    return PPOActorConfig(
        experiment_name="tiny",
        trial_name="one",
        backend=f"megatron:d{RANKS}",
        path=str(model),
        dtype="float32",
        gradient_checkpointing=False,
        mb_spec=MicroBatchSpec(max_tokens_per_mb=MAX_TOKENS),
        optimizer=None if role == "ref" else OptimizerConfig(lr=1e-3, eps=ADAM_EPS, warmup_steps_proportion=0.0),
        megatron=MegatronEngineConfig(
            bridge_type=bridge_type,
            use_bridge_for_update_weights=bridge_type == "megatron-bridge",
            recompute_granularity=None,
            recompute_method=None,
            recompute_num_layers=None,
        ),
    )


def build(engine: type[Any], model: Path, bridge_type: str = "megatron-bridge", role: str = "actor") -> Any:
    """Build and initialize an engine as AReaL's `PPOTrainer` does."""
    from areal.api import FinetuneSpec, ParallelStrategy
    from megatron.core import parallel_state

    os.environ["LOCAL_RANK"] = "0"
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            expert_model_parallel_size=RANKS, expert_tensor_parallel_size=1, order="tp-cp-ep-dp-pp"
        )
    built = engine(configuration(model, bridge_type, role))
    seed()
    built.create_process_group(ParallelStrategy(data_parallel_size=RANKS, expert_parallel_size=RANKS))
    seed()
    built.initialize(None, FinetuneSpec(total_train_epochs=1, dataset_size=100, train_batch_size=1))
    return built


def batch(rank: int, step: int) -> dict[str, torch.Tensor]:
    """Return the padded batch of one data-parallel rank."""
    rng = np.random.default_rng(100 * step + rank)
    length_B = rng.integers(4, MAX_LENGTH + 1, NUM_SAMPLES)
    attention = np.arange(MAX_LENGTH) < length_B[:, None]
    tokens = np.where(attention, rng.integers(2, 90, (NUM_SAMPLES, MAX_LENGTH)), 0)
    loss_mask = attention & (np.arange(MAX_LENGTH) >= 2)
    return {
        "input_ids": torch.from_numpy(tokens),
        "attention_mask": torch.from_numpy(attention),
        "loss_mask": torch.from_numpy(loss_mask),
    }


def generate(client: type[Any], data: Any) -> None:
    """Have a client of the rollout return the sequences of a batch, and wait until their reports have arrived.

    Args:
        client: its class.
        data: what `batch` returned.
    """
    from areal.api import ModelResponse
    from areal.api.cli_args import InferenceEngineConfig
    from areal.infra import RemoteInfEngine

    async def answer(_: Any, tokens: list[int]) -> Any:
        routed = random_routes(rng, len(tokens) - 1).reshape(len(tokens) - 1, -1).astype(np.int32)
        return ModelResponse(input_tokens=tokens[:2], output_tokens=tokens[2:], routed_experts=routed)

    rng = np.random.default_rng(7)
    with mock.patch.object(RemoteInfEngine, "agenerate", answer):
        built = client(InferenceEngineConfig(backend="sglang:d1", return_routed_experts=True))
        for tokens, attention in zip(data["input_ids"], data["attention_mask"], strict=True):
            asyncio.run(built.agenerate(tokens[attention].tolist()))
    built.stream.flush()
    built.stream.close()


def infer(engine: Any, data: Any) -> torch.Tensor:
    """Run the pass over old log-probabilities; return them."""
    engine.train(False)
    with torch.no_grad():
        result: torch.Tensor = engine.forward_batch(dict(data))
    return result


def update(engine: Any, data: Any) -> tuple[float, float]:
    """Run one update; return its loss, added up over the micro-batches of this rank, and the norm of its gradients."""
    losses = []

    def loss(log_probs: Any, entropy: Any, inputs: Any, **_: Any) -> Any:
        mask = inputs["loss_mask"].float()
        losses.append(-(log_probs * mask).sum() / mask.sum())
        return losses[-1]

    engine.train(True)
    stats = engine.train_batch(dict(data), loss, lambda inputs: inputs["loss_mask"].count_nonzero().float())
    engine.lr_scheduler_step()
    return float(sum(losses)), stats["grad_norm"]


def sent(engine: Any) -> dict[str, torch.Tensor]:
    """Return what AReaL sends to the rollout, through its own update of weights up to the broadcast."""
    kept: dict[str, torch.Tensor] = {}

    def keep(engine: Any, meta: Any, named_tensors: Any) -> None:
        kept.update({name: tensor.clone() for name, tensor in named_tensors})
        named_tensors.clear()

    engine.rollout_engine = SimpleNamespace(pause_generation=lambda: None, continue_generation=lambda: None)
    engine.rollout_coordinator = engine.rollout_engine
    engine.weight_update_group_initialized = True
    engine.weight_update_master_addr, engine.weight_update_master_port = "127.0.0.1", 1
    with mock.patch.object(MegatronEngine, "_update_bucket_weights_from_distributed", keep):
        engine.update_weights(SimpleNamespace(type="xccl", weight_chunked_mem_mb=1))
    told = [kept]
    dist.broadcast_object_list(told, src=0)  # only the head of the pipeline stage sends
    return told[0]
