"""LoRA adapters in the shapes that Megatron-Bridge gives them (`peft/lora.py`, `peft/lora_layers.py`, `peft/utils.py`).

The matrices around a grouped product serve all experts of a layer: they are equal on all ranks of an EP group, and
train on the sum of their gradients. Bridge 0.6 sums in hooks. Later versions mark the matrices, and sum once per step.
Versions before 0.5.1 did not sum: with `OWN` among the targets, the matrices serve the experts of one rank.
"""

from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor, nn

RANK = 4
OWN = "adapters of ranks"


class Adapter(nn.Module):
    """A product of low rank."""

    def __init__(self, inputs: int, outputs: int, like: Tensor) -> None:
        super().__init__()
        self.linear_in = nn.Linear(inputs, RANK, bias=False, dtype=like.dtype)
        self.linear_out = nn.Linear(RANK, outputs, bias=False, dtype=like.dtype)
        for parameter in self.parameters():
            parameter.allreduce = getattr(like, "allreduce", True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear_out(self.linear_in(inputs))
        return outputs


class SharedAdapter(Adapter):
    """The product of low rank around the experts of a rank, as `ParallelLinearAdapter`."""

    def __init__(self, inputs: int, outputs: int, like: Tensor) -> None:
        super().__init__(inputs, outputs, like)
        self.group = parallel_state.get_expert_model_parallel_group()
        for parameter in self.parameters():
            dist.broadcast(parameter.detach(), dist.get_global_rank(self.group, 0), group=self.group)
            parameter.register_hook(self._allreduce_shared_expert_grad)

    def _synchronize_shared_expert_parameters(self) -> None:
        """Broadcast the matrices, which the constructor has done."""

    def _allreduce_shared_expert_grad(self, gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient, group=self.group)
        return gradient


class ParallelLinearAdapter(Adapter):
    """The product of low rank around the experts of a rank, which no other rank trains."""


class AdaptedLinear(nn.Module):
    """A linear layer of megatron, or a grouped product, and its adapter beside it, as `LoRALinear`."""

    def __init__(self, to_wrap: Any, around_product: type[Adapter]) -> None:
        super().__init__()
        self.to_wrap = to_wrap
        is_grouped = hasattr(to_wrap, "weight0")
        like = to_wrap.weight0 if is_grouped else to_wrap.weight
        outputs, inputs = like.shape
        self.adapter = (around_product if is_grouped else Adapter)(inputs, outputs, like)

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        outputs, bias = self.to_wrap(inputs, *args, **kwargs)
        return outputs + self.adapter(inputs), bias

    def sharded_state_dict(self, prefix: str = "", *args: Any) -> dict[str, Any]:
        """Return what a checkpoint stores of the wrapped layer, without a part of its name for the wrapper."""
        stored: dict[str, Any] = self.to_wrap.sharded_state_dict(prefix, *args)
        return stored


class AdaptedRouter(nn.Module):
    """A router of megatron whose logits have an adapter, as `LoRATopKRouter`."""

    def __init__(self, to_wrap: Any) -> None:
        super().__init__()
        self.to_wrap = to_wrap
        self.adapter = Adapter(to_wrap.weight.shape[1], to_wrap.weight.shape[0], to_wrap.weight)

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.to_wrap._maintain_float32_expert_bias()
        inputs = self.to_wrap.apply_input_jitter(inputs)
        logits = self.to_wrap.gating(inputs)
        logits = logits + self.adapter(inputs.contiguous()).to(logits.dtype)
        return self.to_wrap.routing(logits, *args, **kwargs)

    def set_layer_number(self, layer_number: int) -> None:
        self.to_wrap.set_layer_number(layer_number)


def adapt(model: nn.Module, targets: tuple[str, ...]) -> None:
    """Wrap every module whose name ends with one of `targets`, and freeze all parameters but those of adapters."""
    if not targets:
        return
    around_product = ParallelLinearAdapter if OWN in targets else SharedAdapter
    found = [(name, module) for name, module in model.named_modules() if name.endswith(targets)]
    for name, module in found:
        parent, _, own = name.rpartition(".")
        is_router = isinstance(module, TopKRouter)
        wrapper = AdaptedRouter(module) if is_router else AdaptedLinear(module, around_product)
        setattr(model.get_submodule(parent), own, wrapper)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".adapter." in name)


def sum_once_per_step(model: nn.Module) -> None:
    """Mark the matrices that all experts share, and drop their hooks, as Bridge's training does after 0.6."""
    for adapter in model.modules():
        if isinstance(adapter, SharedAdapter):
            for parameter in adapter.parameters():
                parameter.expert_parallel_replicated = True
                parameter._backward_hooks.clear()


def finalize_with_sum(chunks: list[nn.Module], *args: Any, **kwargs: Any) -> None:
    """Reduce gradients, and then sum those of marked matrices over the ranks of an EP group."""
    finalize_model_grads(chunks, *args, **kwargs)
    for parameter in (each for chunk in chunks for each in chunk.parameters()):
        if getattr(parameter, "expert_parallel_replicated", False):
            dist.all_reduce(parameter.main_grad, group=parallel_state.get_expert_model_parallel_group())
