"""The state of a megatron optimizer that must travel with an expert."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from relibra.agent.homes.checkpoint import loading_remainders, refusing_physical_order, refusing_places
from relibra.agent.homes.optimizer_state import OptimizerState, Shard
from relibra.agent.homes.state_readers import reader_of
from relibra.agent.refusals import ddp_refusals, optimizer_refusals, refuse

_KNOWN = (FP32Optimizer, Float16OptimizerWithFloat16Params, DistributedOptimizer)


def optimizer_state(optimizer: Any) -> OptimizerState:
    """Return the state of a megatron or torch optimizer; no state for None.

    Raises:
        Unsupported: a reorder cannot move the optimizer's state; the message names an alternative.
    """
    if optimizer is None:
        return OptimizerState([])
    distributed: list[DistributedOptimizer] = []
    inner = []
    for part in _parts(optimizer):
        if isinstance(part, _KNOWN):
            if part.optimizer is None:  # a stub: this rank has no parameters for this optimizer
                continue
            refusals = optimizer_refusals(part.config)
            if isinstance(part, DistributedOptimizer):
                refusals += ddp_refusals(part.ddp_config)
                distributed.append(part)
            for refusal in refusals:
                raise refusal.error
            if part.config.use_precision_aware_optimizer and not reader_of(part.optimizer).knows_dtypes:
                raise refuse(
                    f"use_precision_aware_optimizer=True with this {type(part.optimizer).__name__}, which does not "
                    "say in name_to_dtype_map what it keeps",
                    "Transformer Engine's FusedAdam (2.1 to 2.18 do), or use_precision_aware_optimizer=False",
                )
            part = part.optimizer
        if not isinstance(part, torch.optim.Optimizer):
            raise refuse(
                f"{type(part).__name__}, which keeps its state where a reorder cannot move it",
                "megatron's Adam or SGD",
            )
        inner.append(part)
    return OptimizerState(inner, functools.partial(_shard, distributed) if distributed else None)


def optimizer_parts(optimizer: Any) -> list[Any]:
    """Return the optimizers of megatron inside that have parameters, to be compared with the table of needs.

    After each of them comes the optimizer inside of it, which may be megatron's, too.
    """
    known = (part for part in _parts(optimizer) if isinstance(part, _KNOWN))
    inner = ((part, getattr(part, "optimizer", part)) for part in known)
    return [part for pair in inner if pair[1] is not None for part in pair]


def _parts(optimizer: Any) -> list[Any]:
    return list(optimizer.chained_optimizers) if type(optimizer) is ChainedOptimizer else [optimizer]


def _shard(optimizers: Sequence[DistributedOptimizer], parameter: Tensor) -> Shard | None:
    for optimizer in optimizers:
        if parameter in optimizer.model_param_gbuf_map:
            owned = optimizer._get_model_param_range_map(parameter)["param"]
            group, position = optimizer.model_param_group_index_map[parameter]
            main = optimizer.optimizer.param_groups[group]["params"][position]
            is_copy = main.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr()
            return Shard(start=owned.start, stop=owned.end, main=main, is_copy=is_copy)
    return None


def guard_checkpoints(optimizer: Any) -> Callable[[], None]:
    """Make distributed optimizers refuse checkpoints by place, and load the others. Return the undoing."""
    guarded = [part for part in _parts(optimizer) if isinstance(part, DistributedOptimizer)]
    replaced = [(part, "sharded_state_dict", refusing_physical_order(part.sharded_state_dict)) for part in guarded]
    for part in guarded:
        if getattr(part.optimizer, "store_param_remainders", False):
            replaced.append((part, _SETTER, loading_remainders(getattr(part, _SETTER))))
    # A chained optimizer itself writes and reads one file for all of its parts.
    by_place = [optimizer, *(part for part in guarded if part is not optimizer)] if guarded else []
    replaced += [(part, name, refusing_places(name)) for part in by_place for name in _TORCH_FORMAT]
    for part, name, method in replaced:
        setattr(part, name, method)

    def restore() -> None:
        for part, name, _ in replaced:
            delattr(part, name)

    return restore


_SETTER = "_set_main_param_and_optimizer_states"
_TORCH_FORMAT = ("save_parameter_state", "load_parameter_state")
