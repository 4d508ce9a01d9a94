"""What the activations of experts take, by megatron's configuration of the MoE layers and the pipeline."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.planning.memory import ActivationMemory, copy_bytes

log = logging.getLogger(__name__)


def bytes_per_copy(config: Any) -> tuple[int, int]:
    """Return `copy_bytes`; (0, 0) for weights of few bits, whose inputs are kept in a form that this does not know."""
    if config.fp8 or getattr(config, "fp4", None):
        return 0, 0
    return copy_bytes(
        getattr(config, "moe_latent_size", None) or config.hidden_size,
        config.moe_ffn_hidden_size // (config.expert_tensor_parallel_size or 1),
        element_bytes=config.params_dtype.itemsize,
        is_gated=config.gated_linear_unit,
        is_fused=config.bias_activation_fusion,
        has_bias=config.add_bias_linear,
        recomputed=_recomputed_modules(config),
        layers_at_once=_layers_at_once(config),
    )


def _recomputed_modules(config: Any) -> Sequence[str]:
    """Return the parts of a layer that every layer recomputes."""
    if config.recompute_granularity != "full":
        return (config.recompute_modules or ()) if config.recompute_granularity == "selective" else ()
    if config.recompute_method != "block":
        return ("moe",)
    # Megatron recomputes so many layers of each chunk, and keeps the others.
    num_chunks = config.pipeline_model_parallel_size * (config.virtual_pipeline_model_parallel_size or 1)
    return ("moe",) if config.recompute_num_layers * num_chunks >= config.num_layers else ()


def _layers_at_once(config: Any) -> int:
    """Return how many layers are recomputed together, and so hold their activations at the same time."""
    is_uniform = config.recompute_granularity == "full" and config.recompute_method == "uniform"
    return (config.recompute_num_layers or 1) if is_uniform else 1


def activation_memory(config: Any, chunks: Sequence[nn.Module]) -> ActivationMemory:
    """Collective over all ranks: return what token copies take, and which layers each pipeline stage runs.

    Args:
        config: megatron's configuration of the MoE layers.
        chunks: the chunks of the model on this rank.
    """
    from megatron.core import parallel_state

    from relibra.agent import megatron

    layers = [len(megatron.find_layers([chunk])) for chunk in chunks]
    stages = dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    told: list[list[int]] = [layers] * dist.get_world_size()
    dist.all_gather_object(told, layers)
    kept_bytes, working_bytes = bytes_per_copy(config)
    return ActivationMemory(
        kept_bytes=kept_bytes,
        working_bytes=working_bytes,
        num_stages=len(stages),
        chunk_layers=tuple(told[rank][chunk] for chunk in range(len(chunks)) for rank in stages),
    )


def with_budget(memory: ActivationMemory, budget_gib: float | None, free_bytes: int | None) -> ActivationMemory:
    """Return `memory` with the budget that the user sets, or else with what is free on the GPU that has the least.

    Args:
        memory: what token copies take.
        budget_gib: the user's budget; 0 for none, and None if the user says nothing.
        free_bytes: what is free; None if ranks have no GPU.
    """
    if budget_gib and not memory.is_known:
        log.warning("relibra keeps no memory budget: it does not know what weights of few bits keep for a token")
    budget_bytes = (free_bytes or 0) if budget_gib is None else round(budget_gib * 2**30)
    return replace(memory, budget_bytes=budget_bytes if memory.is_known else 0)
