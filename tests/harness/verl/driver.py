"""verl's trainer as far as it deals batches: `_balance_batch` is its own, and workers and queue are stand-ins.

T tokens of a sequence, L layers, E experts, K top-k.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hydra import compose, initialize_config_module
from numpy.typing import NDArray
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from harness.tiny_qwen3_moe import NUM_EXPERTS, TOP_K
from harness.verl.engines import PROMPT, RESPONSE

NUM_SEQUENCES, MINI_BATCH = 32, 16
STRAYING = 0.1
"""The share of tokens that leave their domain."""

Rows = dict[str, torch.Tensor]
"""Padded sequences in the order of the rollout."""


def rows_of_two_domains(step: int, num_layers: int) -> Rows:
    """Return sequences of which each uses one half of the experts mostly, in all layers."""
    rng = np.random.default_rng(step)
    rows = []
    for index in range(NUM_SEQUENCES):
        prompt, response = int(rng.integers(2, PROMPT + 1)), int(rng.integers(3, RESPONSE + 1))
        first, end = PROMPT - prompt, PROMPT + response
        place_T = np.arange(PROMPT + RESPONSE)
        is_token_T = (place_T >= first) & (place_T < end)
        routes = np.zeros((PROMPT + RESPONSE, num_layers, TOP_K), np.int16)
        domain, half = int(rng.integers(2)), NUM_EXPERTS // 2
        for token in range(first, end - 1):
            for layer in range(num_layers):
                of_token = 1 - domain if rng.random() < STRAYING else domain
                routes[token, layer] = of_token * half + rng.choice(half, TOP_K, replace=False)
        rows.append(
            {
                "input_ids": np.where(is_token_T, rng.integers(1, 99, len(place_T)), 0),
                "attention_mask": is_token_T.astype(np.int64),
                "response_mask": is_token_T[PROMPT:].astype(np.int64),
                "position_ids": np.maximum(np.cumsum(is_token_T) - 1, 0),
                "routed_experts": routes,
                "index": np.int64(index),
            }
        )
    stacked = {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}
    stacked["prompts"], stacked["responses"] = stacked["input_ids"][:, :PROMPT], stacked["input_ids"][:, PROMPT:]
    return stacked


def configuration(*changed: str) -> Any:
    """Return verl's configuration of a job with two mini-batches per batch, which replays the rollout's routing."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                "model_engine=megatron",
                "algorithm.adv_estimator=grpo",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI_BATCH}",
                "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
                *changed,
            ],
        )


def trainer(config: Any, group: Any) -> Any:
    """Return verl's trainer, which can deal batches to a group of workers only."""
    built = object.__new__(PPOTrainerSync)
    built.config, built.actor_rollout_wg = config, group
    built.use_critic, built.global_steps = False, 1
    built.tokenizer = SimpleNamespace(eos_token_id=0)
    return built


def dealt(trainer: Any, rows: Rows, metrics: dict[str, Any]) -> list[int]:
    """Let a trainer deal a batch; return the order of the sequences."""
    lengths = rows["attention_mask"].sum(-1).tolist()
    batch = KVBatchMeta(
        keys=[f"{index}" for index in range(len(lengths))],
        tags=[{"seq_len": length} for length in lengths],
        partition_id="train",
    )
    with _queue_of(rows):
        batch = trainer._balance_batch(batch, metrics=metrics)
    return [int(key) for key in batch.keys]


def crossing(rows: Rows, indices: Sequence[int], home_node_LE: NDArray[np.integer], node: int) -> int:
    """Return the token copies of sequences on a machine whose expert is on another one."""
    total = 0
    for index in indices:
        # The last token of a sequence has no route.
        place_T = rows["attention_mask"][index].nonzero().flatten()[:-1]
        routes_TLK = rows["routed_experts"][index][place_T].numpy()
        total += sum(
            int(np.sum(home_node_E[routes_TLK[:, layer]] != node)) for layer, home_node_E in enumerate(home_node_LE)
        )
    return total


@contextmanager
def _queue_of(rows: Rows) -> Iterator[None]:
    """Stand in for the TransferQueue that has the content of a batch."""

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, torch.Tensor]:
        assert partition_id == "train"
        mask = rows["attention_mask"].bool()
        return {
            field: torch.nested.as_nested_tensor(
                [rows[field][int(key)][mask[int(key)]] for key in keys], layout=torch.jagged
            )
            for field in select_fields
        }

    with mock.patch.object(trainer_base, "tq", SimpleNamespace(kv_batch_get=kv_batch_get)):
        yield
