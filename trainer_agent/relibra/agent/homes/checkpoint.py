"""Names and checkpoints in logical order: an expert has the name of its own id, wherever it lives.

A checkpoint in logical order loads in any placement, with any number of expert-parallel ranks, and without relibra.
"""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relibra.agent.experts import Experts
from relibra.errors import InvalidInput, Unsupported

_KEY = "distrib_optim_sharding_type"
LOGICAL_SHARDING = "fully_reshardable"
"""The only sharding of a distributed optimizer's state that is by parameter and not by place in a buffer."""


def logical_named_parameters(
    models: Sequence[nn.Module], logical: Iterable[tuple[Experts, Sequence[int]]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and parameters of `models`. Names of experts have the logical id instead of the slot.

    Args:
        models: the models without wrappers. With several models, names begin with `model<index>.`.
        logical: the experts of every MoE layer of this rank, with the logical expert in every home slot.
    """
    of_module = {id(experts.module): (experts, in_slots) for experts, in_slots in logical}
    for index, model in enumerate(models):
        chunk = f"model{index}." if len(models) > 1 else ""
        renamed: dict[str, str] = {}
        for prefix, module in model.named_modules():
            if id(module) in of_module:
                renamed |= _names_by_place(prefix, *of_module[id(module)])
        for name, parameter in model.named_parameters():
            yield chunk + renamed.get(name, name), parameter


def _names_by_place(prefix: str, experts: Experts, logical_experts: Sequence[int]) -> dict[str, str]:
    dot = f"{prefix}." if prefix else ""
    return {
        dot + experts.name(tensor, slot): dot + experts.name(tensor, logical)
        for slot, logical in enumerate(logical_experts)
        for tensor in range(len(experts.parameters[slot]))
    }


class _Rank:
    """A stand-in for a process group that only answers rank and size."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def logical_sharded_state_dict(
    module: Any,
    logical_experts: Callable[[], Sequence[int]],
    num_experts: int,
) -> Callable[..., dict[str, Any]]:
    """Return a stand-in for `module.sharded_state_dict`.

    Args:
        module: a megatron module of experts, sequential or grouped.
        logical_experts: returns the logical expert that is in every home slot now.
        num_experts: E.
    """

    def sharded_state_dict(
        prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for slot, expert in enumerate(logical_experts()):
            alone = _alone(module, slot, _Rank(expert, num_experts))
            of_expert = type(module).sharded_state_dict(alone, prefix, sharded_offsets, metadata)
            result |= {prefix + _in_slot(key.removeprefix(prefix), slot): value for key, value in of_expert.items()}
        return result

    return sharded_state_dict


def _alone(module: Any, slot: int, rank: _Rank) -> Any:
    """Return the module as if each rank held one expert, so that megatron numbers this expert by `rank`."""
    if hasattr(module, "local_experts"):
        modules = {"local_experts": nn.ModuleList([module.local_experts[slot]])}
    else:
        modules = {name: _alone_in(part, slot, rank) for name, part in module._modules.items()}
    return _copy_with(module, num_local_experts=1, ep_group=rank, _modules=modules)


def _alone_in(linear: Any, slot: int, rank: _Rank) -> Any:
    """Return a grouped product, also inside an adapter, with the expert of `slot` only; return others unchanged."""
    wrapped = getattr(linear, "_modules", {}).get("to_wrap")
    if wrapped is not None:
        return _copy_with(linear, _modules=linear._modules | {"to_wrap": _alone_in(wrapped, slot, rank)})
    if not hasattr(linear, "_pg_collection"):
        return linear
    groups = copy.copy(linear._pg_collection)
    groups.ep = rank
    of_slot = {f"{kind}0": linear._parameters.get(f"{kind}{slot}") for kind in ("weight", "bias")}
    parameters = {name: parameter for name, parameter in of_slot.items() if parameter is not None}
    return _copy_with(linear, num_gemms=1, _pg_collection=groups, _parameters=parameters)


def _copy_with(module: Any, **attributes: Any) -> Any:
    """Return a shallow copy of a module with other attributes, without calling its own `__copy__`."""
    changed = object.__new__(type(module))
    vars(changed).update(vars(module) | attributes)
    return changed


def _in_slot(key: str, slot: int) -> str:
    """Return the key of an expert in `slot`, given its key in a module of one expert."""
    key = key.replace("local_experts.0.", f"local_experts.{slot}.", 1)
    key = re.sub(r"^(linear_fc\d\.(?:weight|bias))0$", rf"\g<1>{slot}", key)
    return re.sub(r"^(linear_fc\d\._extra_state)$", rf"\g<1>{slot or ''}", key)


def refusing_physical_order(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in for a distributed optimizer's `sharded_state_dict` that refuses shardings by place."""

    def sharded_state_dict(
        model_sharded_state_dict: Any = None,
        is_loading: bool = False,
        sharding_type: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Any:
        wanted = sharding_type or (metadata or {}).get(_KEY, "megatron's default")
        if wanted != LOGICAL_SHARDING:
            raise Unsupported(
                f"relibra's agent does not support checkpoints with distrib_optim_sharding_type {wanted!r}, which "
                f"store optimizer state by place and not by expert; use {_KEY}='{LOGICAL_SHARDING}'"
            )
        return plain(model_sharded_state_dict or {}, is_loading, metadata=(metadata or {}) | {_KEY: wanted})

    return sharded_state_dict


def refusing_places(method: str) -> Callable[..., Any]:
    """Return a stand-in that always refuses, for a method that reads or writes checkpoints by place in torch format."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(
            f"relibra's agent does not support {method}, which stores optimizer state by place and not by expert; use "
            f"dist_checkpointing with {_KEY}='{LOGICAL_SHARDING}', or detach before you save or load"
        )

    return refuse


def loading_remainders(plain: Callable[[Any, dict[str, Any]], Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a stand-in for a distributed optimizer's `_set_main_param_and_optimizer_states`.

    With `store_param_remainders` the optimizer keeps the lower halves of fp32 main weights, beside bf16 weights that
    are the upper halves. Megatron stores the int16 numbers as fp32 ones, and up to 0.19 does not convert them back.

    Raises:
        InvalidInput: the checkpoint has whole main weights.
    """

    def set_states(model_param: Tensor, tensors: dict[str, Any]) -> Any:
        main = tensors["param"]
        remainders = main.to(torch.int16)
        if model_param.dtype != torch.bfloat16:
            return plain(model_param, tensors)
        if not torch.equal(remainders.to(main.dtype), main):
            raise InvalidInput.of(
                "store_param_remainders",
                expected="False, because the checkpoint has whole main weights",
                got="True, for which it would have to have their lower halves",
            )
        return plain(model_param, tensors | {"param": remainders})

    return set_states
