"""The parameters and buffers of experts, and the adapters (LoRA) around their grouped products.

An expert may move to another rank, or have a replica there, so each of its parameters must travel with it or be the
same on all ranks. Megatron-Bridge's default (`share_expert_adapters=True`) puts one adapter around a grouped product:
`linear_fc1` then holds the product as `to_wrap` and the matrices as `adapter`. From Bridge 0.6 on, all ranks of an EP
group have equal matrices and train them on the sum of their gradients. So there is one adapter for all experts of a
layer, and it does not matter which rank computes a token of an expert: as a home, with a replica, or after a move.
Nothing of the adapter travels.

Up to 0.5.0 Bridge does not sum, so each rank trains an adapter of its own, for the experts that live on it. If homes
stay, relibra treats the matrices as tensors of each of these experts: a replica uses the matrices of its home, and
their gradients return there. An expert that moved would use the adapter of another rank, so relibra refuses this. In
Bridge 0.5.1 each rank draws its own matrices but sums their gradients. That fits neither case, so relibra refuses it
too.

Bridge sums gradients in one of two ways (`peft/utils.py`):

- 0.6: in a hook on each matrix, which misses gradients that megatron's own products add to `main_grad`
  (`gradient_accumulation_fusion`). The matrices of the ranks then drift apart, with and without relibra.
- later: once per step, after DDP has reduced gradients. The hooks of 0.6 stay until the training loop says that it sums
  this way.

Buffers do not travel. megatron's own experts have none. ModelOpt's quantisers, for quantisation-aware training, keep
the range of an expert's weights in a buffer (`_amax`).
"""

import re
from collections import Counter
from typing import Any, NamedTuple

from torch import nn

from relibra.agent.refusals import adapter_that_drifts, adapter_without_sum, refuse
from relibra.agent.setting import Refusal

_OF_ONE_EXPERT = re.compile(r"local_experts\.\d+\..+|linear_fc[12]\.(to_wrap\.)*(weight|bias)\d*")
"""Names of parameters that belong to one expert. A single `weight` of all experts is refused by `GroupedExperts`."""
_AROUND_PRODUCT = re.compile(r"linear_fc[12]\.")
_OF_ALL_TOKENS = "ParallelLinearAdapter"
"""Bridge's adapter that treats all tokens alike; its others have matrices for single experts."""


def product(experts: Any, name: str) -> tuple[str, Any]:
    """Return the path and the module of a product of experts without its adapter; the module is None if there is none.

    Args:
        experts: a module of experts, or anything else that has products.
        name: `linear_fc1` or `linear_fc2`.
    """
    path, part = name, getattr(experts, name, None)
    while part is not None and "to_wrap" in getattr(part, "_modules", {}):
        path, part = f"{path}.to_wrap", part.to_wrap
    return path, part


class OwnAdapter(NamedTuple):
    """An adapter around a product that serves the experts of one rank alone."""

    path: str
    """Where it is in the module of experts."""
    wrapper: nn.Module
    """The module that calls it, by the name `adapter`."""
    adapter: nn.Module


def own_adapters(experts: Any) -> list[OwnAdapter]:
    """Return the adapters around products that each rank trains for its own experts."""
    found = list[OwnAdapter]()
    for name in ("linear_fc1", "linear_fc2"):
        wrapper = getattr(experts, name, None)
        adapter = getattr(wrapper, "_modules", {}).get("adapter")
        if (
            wrapper is None
            or adapter is None
            or _OF_ALL_TOKENS not in (each.__name__ for each in type(adapter).__mro__)
        ):
            continue
        if not any(_is_shared(each) or _summing(each) for each in adapter.parameters()):
            found.append(OwnAdapter(f"{name}.adapter", wrapper, adapter))
    return found


def check_parameters(experts: nn.Module, *, homes_stay: bool = False) -> None:
    """Check that every parameter of an experts module belongs to one expert, or serves all experts of the layer alike.

    Args:
        experts: the module.
        homes_stay: whether no expert moves. Then a parameter may serve the experts of a rank.

    Raises:
        Unsupported: a parameter does neither, or there is a buffer; the message names it.
    """
    for name, _ in experts.named_buffers():
        raise refuse(
            f"the buffer {name} of the experts, which would not go with an expert to its replicas or its new rank "
            "(quantisation-aware training with ModelOpt keeps the range of the weights of each expert in one)",
            "no quantisation-aware training of experts",
        )
    named = list(experts.named_parameters(remove_duplicate=False))
    numbers = Counter(id(parameter) for _, parameter in named)
    own = tuple(f"{each.path}." for each in own_adapters(experts)) if homes_stay else ()
    for name, parameter in named:
        if not _OF_ONE_EXPERT.fullmatch(name) or numbers[id(parameter)] > 1:
            if own and name.startswith(own):
                continue
            refusal = _obstacle(name, parameter, experts.get_submodule(name.rpartition(".")[0]))
            if refusal is not None:
                raise refusal.error


def _obstacle(name: str, parameter: nn.Parameter, owner: nn.Module) -> Refusal | None:
    """Return why a parameter of `owner` does not serve all experts of a layer alike, or None if it does."""
    what = f"the parameter {name} of the experts"
    if not (_is_shared(parameter) and _AROUND_PRODUCT.match(name)):
        return adapter_without_sum(what)
    has_hook = bool(_summing(parameter)) or hasattr(parameter, "_expert_parallel_grad_hook")
    is_fused = bool(getattr(owner, "gradient_accumulation_fusion", False))
    return adapter_that_drifts(what) if has_hook and is_fused else None


def _is_shared(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is equal on all ranks of an EP group, and trains on the sum of their gradients."""
    is_marked = bool(getattr(parameter, "expert_parallel_replicated", False))
    return is_marked or any(hasattr(owner, "_synchronize_shared_expert_parameters") for owner in _summing(parameter))


def _summing(parameter: nn.Parameter) -> list[Any]:
    """Return the adapters that sum the gradients of a parameter over the ranks of an EP group, in hooks."""
    hooks = (getattr(parameter, "_backward_hooks", None) or {}).values()
    return [hook.__self__ for hook in hooks if getattr(hook, "__name__", "") == "_allreduce_shared_expert_grad"]
