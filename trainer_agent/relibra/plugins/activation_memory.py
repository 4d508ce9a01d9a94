"""What the activations of experts take, by megatron's configuration of the MoE layers and the pipeline."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from relibra.planning.memory import NOT_KNOWN, ActivationMemory, copy_bytes


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
        recomputed=_recomputed_modules(config),
    )


def _recomputed_modules(config: Any) -> Sequence[str]:
    """Return the parts of a layer that every layer recomputes."""
    if config.recompute_granularity == "full":
        covers_all = config.recompute_method != "block" or config.recompute_num_layers >= config.num_layers
        return ("moe",) if covers_all else ()
    return (config.recompute_modules or ()) if config.recompute_granularity == "selective" else ()


def activation_memory(config: Any, chunks: Sequence[nn.Module], budget_bytes: int) -> ActivationMemory:
    """Collective over all ranks: return what token copies take, and which layers each pipeline stage runs.

    Args:
        config: megatron's configuration of the MoE layers.
        chunks: the chunks of the model on this rank.
        budget_bytes: the most that a rank may take; 0 for no budget.
    """
    from megatron.core import parallel_state

    from relibra.agent import megatron

    layers = [len(megatron.find_layers([chunk])) for chunk in chunks]
    stages = dist.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
    told: list[list[int]] = [layers] * dist.get_world_size()
    dist.all_gather_object(told, layers)
    kept_bytes, working_bytes = bytes_per_copy(config)
    if not kept_bytes + working_bytes:
        return NOT_KNOWN
    return ActivationMemory(
        kept_bytes=kept_bytes,
        working_bytes=working_bytes,
        num_stages=len(stages),
        chunk_layers=tuple(told[rank][chunk] for chunk in range(len(chunks)) for rank in stages),
        budget_bytes=budget_bytes,
    )
