"""The rows that NeMo-RL's own code hands to the routers of every rank, counted beside those that relibra plans.

L MoE layers, E experts, M micro-batches, R ranks.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from nemo_rl.models.megatron import data as megatron_data
from nemo_rl.models.megatron import router_replay

from harness.nemo_rl import workers
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from relibra.plugins.nemo_rl.batch import rank_batch, trainer_layout
from relibra.routing import ModelLayers
from relibra.routing.token_layout import ParallelLayout
from relibra.steps.rank_parts import count_rank

LAYERS = ModelLayers.uniform(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)


@dataclass(frozen=True)
class Layout:
    """Settings that decide where rows are."""

    mode: str
    ranks: ParallelLayout
    multiple: int = 1
    pipeline: int = 1
    fp8: bool = False


LAYOUTS = {
    "packed": Layout("packed", ParallelLayout(data=2, expert=2)),
    "packed, tensor ranks": Layout("packed", ParallelLayout(data=2, tensor=2, expert=4), 4),
    "packed, context and tensor ranks": Layout("packed", ParallelLayout(data=2, context=2, tensor=2, expert=4), 8),
    "packed, pipeline stages": Layout("packed", ParallelLayout(data=2, context=2, expert=2), 4, pipeline=2),
    "packed, fp8": Layout("packed", ParallelLayout(data=2, context=2, tensor=2, expert=4), 8, fp8=True),
    "dynamic": Layout("dynamic", ParallelLayout(data=2, expert=2), 4),
    "dynamic, tensor ranks": Layout("dynamic", ParallelLayout(data=2, tensor=2, expert=4), 6),
    "padded": Layout("padded", ParallelLayout(data=2, expert=2)),
    "padded, tensor ranks": Layout("padded", ParallelLayout(data=2, tensor=2, expert=4), 2),
}


def difference(layout: Layout) -> dict[str, int]:
    """Return the copies of NeMo-RL's rows, and the copies that relibra counts otherwise."""
    config = _configuration(layout)
    total = wrong = 0
    sharded = workers.shards(workers.rollout(0), layout.mode, workers.GLOBAL_BATCH, multiple=layout.multiple)
    for data_rank, shard in enumerate(sharded):
        for index in range(workers.NUM_GLOBAL_BATCHES):
            batch = shard.get_batch(index, workers.GLOBAL_BATCH // layout.ranks.data)
            replayed, pack_length = _replayed(batch, layout, config, data_rank)
            planned = _planned(batch, layout, config, data_rank, pack_length)
            for key in replayed.keys() | planned.keys():
                wrong += int(np.abs(replayed.get(key, 0) - planned.get(key, 0)).sum())
            total += int(sum(each.sum() for each in replayed.values()))
    return {"copies": total, "wrong": wrong}


def _configuration(layout: Layout) -> dict[str, Any]:
    megatron_cfg = {
        "tensor_model_parallel_size": layout.ranks.tensor,
        "sequence_parallel": layout.ranks.tensor > 1,
        "pipeline_model_parallel_size": layout.pipeline,
        "context_parallel_size": layout.ranks.context,
        "fp8_cfg": {"enabled": layout.fp8, "fp8_recipe": "tensorwise"},
    }
    return {
        "sequence_packing": {"enabled": layout.mode == "packed"},
        "dynamic_batching": {"enabled": layout.mode == "dynamic"},
        "make_sequence_length_divisible_by": layout.multiple,
        "megatron_cfg": megatron_cfg,
    }


def _replayed(batch: Any, layout: Layout, config: Any, data_rank: int) -> tuple[dict[Any, Any], int | None]:
    """Run NeMo-RL's code on every rank; return the counts `[L, E]` by (micro-batch, EP group, source rank)."""
    counts: dict[Any, Any] = {}
    ranks, pack_length = layout.ranks, None
    for context in range(ranks.context):
        with (
            mock.patch.object(megatron_data, "get_context_parallel_rank", return_value=context),
            mock.patch.object(megatron_data, "get_context_parallel_world_size", return_value=ranks.context),
            mock.patch.object(megatron_data, "get_ltor_masks_and_position_ids", return_value=(None,) * 3),
        ):
            *made, length = megatron_data.get_microbatch_iterator(batch, config, 2, straggler_timer=None)
            micro_batches = [each.routed_experts_cp_sharded for each in made[0]]
        pack_length = length if layout.pipeline > 1 else None
        for tensor in range(ranks.tensor):
            rank = (data_rank * ranks.context + context) * ranks.tensor + tensor
            for index, routed in enumerate(micro_batches):
                group, source = divmod(rank, ranks.expert)
                counts[index, group, source] = _counts(_assigned(routed, ranks.tensor, tensor))
    return counts, pack_length


def _assigned(routed: Any, num_tensor: int, tensor: int) -> list[Any]:
    """Return what NeMo-RL gives to the router of each layer on a tensor-parallel rank."""
    config = SimpleNamespace(num_layers=NUM_LAYERS, moe_layer_freq=1, sequence_parallel=num_tensor > 1)
    routers = [
        SimpleNamespace(router_replay=SimpleNamespace(), layer_number=number + 1) for number in range(NUM_LAYERS)
    ]
    model = SimpleNamespace(config=config, modules=lambda: routers)
    with (
        mock.patch.object(router_replay, "_get_tensor_model_parallel_world_size", return_value=num_tensor),
        mock.patch.object(router_replay, "_get_tensor_model_parallel_rank", return_value=tensor),
    ):
        return [rows.numpy() for _, rows in router_replay.build_router_replay_assignments(model, routed)]


def _counts(rows_of_layers: list[Any]) -> Any:
    return np.stack([np.bincount(rows[rows >= 0], minlength=NUM_EXPERTS) for rows in rows_of_layers])


def _planned(batch: Any, layout: Layout, config: Any, data_rank: int, pack_length: int | None) -> dict[Any, Any]:
    is_packed = layout.mode == "packed"
    _, pack_multiple, _ = megatron_data._get_pack_sequence_parameters_for_megatron(
        config["megatron_cfg"], layout.multiple, layout.multiple
    )
    trainer = trainer_layout(layout.ranks, layout.multiple, is_packed, pack_multiple=pack_multiple if is_packed else 1)
    ours = rank_batch(batch, LAYERS, 2, sequence_packing=is_packed, pack_length=pack_length)
    return {
        (part.micro_batch, part.ep_group, part.source_rank): part.counts.counts_LE.astype(np.int64)
        for part in count_rank(ours, data_rank, trainer)
    }
