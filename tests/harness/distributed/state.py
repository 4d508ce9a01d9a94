"""The whole training state under logical names, assembled from the parts on each rank."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch import Tensor

from harness.distributed.fused_adam import FusedAdam

Part = tuple[str, str, int, int, Tensor]
"""(name, kind, first element, total number of elements, flat elements)."""


def assembled(held: Iterable[Part]) -> dict[str, Tensor]:
    """Collective over all ranks: return the flat fp32 tensors by `stage/name/kind`, of which ranks hold parts."""
    stage = parallel_state.get_pipeline_model_parallel_rank() if parallel_state.model_parallel_is_initialized() else 0
    # Pickling an array is ten times as fast as a tensor. fp32 represents every bf16 value exactly.
    mine = [
        (f"{stage}/{name}/{kind}", start, total, flat.detach().float().cpu().numpy())
        for name, kind, start, total, flat in held
    ]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    whole: dict[str, Tensor] = {}
    for key, start, total, flat in (part for of_rank in gathered for part in of_rank):
        tensor = whole.setdefault(key, torch.full((total,), torch.nan))
        tensor[start : start + len(flat)] = torch.from_numpy(flat)
    torn = [key for key, tensor in whole.items() if tensor.isnan().any()]
    assert not torn, f"no rank holds all of {torn[:3]}"
    return whole


def gather_parameters(chunks: Iterable[Any]) -> None:
    """Collective: finish the gather of parameters that a distributed optimizer leaves for the next forward."""
    for chunk in chunks:
        if chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def weights(named: Iterable[tuple[str, Tensor]]) -> Iterator[Part]:
    for name, parameter in named:
        yield name, "weight", 0, parameter.numel(), parameter.detach().flatten()


def gradients(optimizer: Any, named: Iterable[tuple[str, Tensor]]) -> Iterator[Part]:
    """Yield reduced gradients. After a reduce-scatter, a rank has the gradients of its own shard."""
    for name, parameter in named:
        for part in parts(optimizer, parameter) if parameter.requires_grad else []:
            start, stop = owned(part, parameter)
            yield name, "grad", start, parameter.numel(), parameter.main_grad.flatten()[start:stop]


def parts(optimizer: Any, parameter: Tensor) -> list[Any]:
    """Return the optimizers that own a part of the parameter."""
    every = getattr(optimizer, "chained_optimizers", [optimizer])
    sharded = [part for part in every if hasattr(part, "model_param_gbuf_map")]
    return [part for part in sharded if parameter in part.model_param_gbuf_map] if sharded else every


def owned(part: Any, parameter: Tensor) -> tuple[int, int]:
    if not hasattr(part, "model_param_gbuf_map"):
        return 0, parameter.numel()
    place = part._get_model_param_range_map(parameter)["param"]
    return place.start, place.end


def optimizer_state(optimizer: Any, named: Iterable[tuple[str, Tensor]]) -> Iterator[Part]:
    """Yield main parameters and moments of megatron's plain and distributed optimizers.

    It yields the root of the second moment, which differs as gradients do. Their squares differ twice as much.
    """
    for name, parameter in named:
        for part in parts(optimizer, parameter):
            start, main = owned(part, parameter)[0], getattr(parameter, "main_param", None)
            if hasattr(part, "model_param_gbuf_map"):
                group, position = part.model_param_group_index_map[parameter]
                main = part.optimizer.param_groups[group]["params"][position]
            key = parameter if main is None else main
            state = part.optimizer.state.get(key, {})
            for kind, tensor in state.items():
                if torch.is_tensor(tensor) and tensor.dim() > 0:
                    moment = values(part.optimizer, key, kind).flatten()
                    yield name, kind, start, parameter.numel(), moment.sqrt() if kind == "exp_avg_sq" else moment
            if main is not None and state:
                yield name, "main", start, parameter.numel(), main.detach().flatten()
            if isinstance(part.optimizer, HybridDeviceOptimizer) and key in part.optimizer.param_to_inner_param:
                inner = part.optimizer.param_to_inner_param[key]
                yield name, "inner", start, parameter.numel(), inner.detach().flatten()


def values(optimizer: Any, key: Tensor, kind: str) -> Tensor:
    """Return state as numbers: that of a FusedAdam may have a scale, or be the lower halves of numbers."""
    if not isinstance(optimizer, FusedAdam):
        return optimizer.state[key][kind]
    return optimizer.main_weight(key) if kind == "master_param" else optimizer.get_unscaled_state(key, kind)
