"""ROLL's workers for a tiny Qwen3-MoE, and batches as its pipelines hand them over.

B samples, S places, L layers, K top-k.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from roll.configs import ModelArguments
from roll.configs.training_args import TrainingArguments
from roll.configs.worker_config import RouterReplayConfig, StrategyArguments, WorkerConfig
from roll.distributed.executor.worker import RankInfo
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.user_defined_rollout_loop import postprocess_output_data

from harness.tiny_qwen3_moe import random_routes, written
from harness.trained import ADAM_EPS

NUM_SAMPLES, SEQUENCE, PROMPT = 4, 16, 5
RANKS = 2


def build(
    worker: type[Any],
    model: Path,
    rank: int,
    *,
    cluster: str,
    strategy: str,
    mode: str = "R3",
    variant: str | None = None,
) -> Any:
    """Build a worker of a cluster as ROLL does under Ray, and initialize it.

    Args:
        worker: the class of the worker.
        model: the folder of the model, as Hugging Face writes it.
        rank: the rank of the worker in its cluster.
        cluster: the name of the cluster.
        strategy: `megatron_train` or `megatron_infer`.
        mode: ROLL's mode of routing replay.
        variant: ROLL's `pg_variant`.
    """
    built = worker.__new__(worker)
    built.worker_config = WorkerConfig(
        name=cluster,
        pg_variant=variant,
        model_args=ModelArguments(model_name_or_path=str(model), dtype="fp32"),
        training_args=TrainingArguments(
            learning_rate=1e-3,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=NUM_SAMPLES // 2,
            max_steps=100,
            output_dir=str(model.parent / "output"),
        ),
        strategy_args=StrategyArguments(
            strategy_name=strategy,
            strategy_config={
                "bias_activation_fusion": False,
                "adam_epsilon": ADAM_EPS,
                "expert_model_parallel_size": RANKS,
                "expert_tensor_parallel_size": 1,
                "use_distributed_optimizer": True,
                "transformer_impl": "local",
                "moe_token_dispatcher_type": "alltoall",
                "moe_grouped_gemm": False,
            },
        ),
        router_replay=RouterReplayConfig(mode=mode),
        infer_batch_size=2,
    )
    built.rank, built.cluster_name, built.worker_name = rank, cluster, f"{cluster}-{rank}"
    built.rank_info = RankInfo(world_size=RANKS, rank=rank, dp_rank=rank, dp_size=RANKS)
    built._logger, built._logprobs_cache = None, {}
    built.loss_func = lambda data, logits: loss(built, data, logits)
    seed()
    built.initialize(
        SimpleNamespace(
            exp_name="roll",
            max_grad_norm=1.0,
            sequence_length=SEQUENCE,
            resume_from_checkpoint=False,
            ppo_epochs=1,
            seed=7,
        )
    )
    return built


def seed() -> None:
    """Set all generators of this process to the same state."""
    torch.manual_seed(7)


def batch(rank: int, step: int, *, has_routes: bool = True) -> Any:
    """Return the data of `train_step` and `compute_log_probs`, padded on the right.

    Args:
        rank: the data-parallel rank.
        step: numbers the batches.
        has_routes: whether the batch has the routes of a rollout.
    """
    rng = np.random.default_rng(100 * step + rank)
    length_B = rng.integers(PROMPT + 2, SEQUENCE + 1, NUM_SAMPLES)
    places_S = np.arange(SEQUENCE)
    attention_BS = (places_S < length_B[:, None]).astype(np.int64)
    tensors = {
        "input_ids": rng.integers(1, 99, (NUM_SAMPLES, SEQUENCE)) * attention_BS,
        "attention_mask": attention_BS,
        "response_mask": attention_BS * (places_S >= PROMPT),
        "position_ids": np.broadcast_to(places_S, (NUM_SAMPLES, SEQUENCE)).copy(),
    }
    if has_routes:
        routes = random_routes(rng, NUM_SAMPLES * SEQUENCE)
        tensors["routed_experts"] = routes.reshape(NUM_SAMPLES, SEQUENCE, *routes.shape[1:])
    return DataProto.from_dict(
        tensors={name: torch.from_numpy(each) for name, each in tensors.items()},
        meta_info={"global_step": step, "loss_mask_keys": ["response_mask"], "_broadcast_non_tensor_batch": False},
    )


def rollout(worker: type[Any]) -> Any:
    """Have a rollout worker answer requests, of which SGLang aborts one; return ROLL's batch of the others.

    Args:
        worker: its class.
    """
    rng, batches, built = np.random.default_rng(5), [], worker.__new__(worker)
    for index in range(NUM_SAMPLES + 1):
        prompt = torch.from_numpy(np.pad(rng.integers(1, 99, 2 + index % 3), (PROMPT - 2 - index % 3, 0)))[None]
        request = DataProto.from_dict(
            tensors={
                "input_ids": prompt,
                "attention_mask": (prompt > 0).long(),
                "position_ids": torch.arange(PROMPT)[None],
            }
        )
        response = {
            "output_token_ids": [rng.integers(1, 99, 3 + index).tolist()],
            "finish_reasons": ["stop" if index else "abort"],
        }
        num_rows = int((prompt > 0).sum()) + len(response["output_token_ids"][0]) - 1
        response["routed_experts"] = [torch.from_numpy(random_routes(rng, num_rows))]
        built.strategy = SimpleNamespace(generate_request=mock.AsyncMock(return_value=response))
        asyncio.run(built.generate_request({"input_ids": prompt[prompt > 0].tolist(), "rid": str(index)}))
        if index:
            data = DataProto(meta_info=response | {"eos_token_id": [0], "pad_token_id": 0})
            batches.append(postprocess_output_data(request, data, SEQUENCE))
    return DataProto.concat(batches).batch


def loss(worker: Any, data: Any, logits: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Return minus the sum of the log-probabilities of responses."""
    log_probs = worker.strategy.op_compute_log_probs(
        logits=logits, input_ids=data.batch["input_ids"], attention_mask=data.batch["response_mask"]
    )
    value = -log_probs.float().sum() / 100
    return value, {"loss": float(value.detach())}


def log_probs(worker: Any, data: Any) -> torch.Tensor:
    """Run a pass over log-probabilities."""
    values: torch.Tensor = worker.compute_log_probs(data).batch["log_probs"]
    return values


def update(worker: Any, data: Any) -> tuple[float, float]:
    """Run one update; return the loss and the norm of its gradients."""
    metrics = worker.train_step(data).meta_info["metrics"]
    losses, norms = np.ravel(metrics["loss"]), np.ravel(metrics[f"{worker.worker_config.name}/grad_norm"])
    return float(losses.sum()), float(norms[0])


def exported(worker: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the whole model as ROLL stores them for Hugging Face."""
    import torch.distributed as dist

    worker.strategy.load_states()
    worker.strategy.model.save_pretrained_as_hf(str(folder))
    dist.barrier()
    weights = written(folder)
    worker.strategy.offload_states()
    dist.barrier()
    return weights
