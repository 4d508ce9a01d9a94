"""LoRA adapters in the shapes that Megatron-Bridge gives them (`peft/lora.py`, `peft/lora_layers.py`)."""

from typing import Any

from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor, nn

RANK = 4


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


class AdaptedLinear(nn.Module):
    """A linear layer of megatron, and its adapter beside it, as `LoRALinear`."""

    def __init__(self, to_wrap: Any) -> None:
        super().__init__()
        self.to_wrap = to_wrap
        outputs, inputs = to_wrap.weight.shape
        self.adapter = Adapter(inputs, outputs, to_wrap.weight)

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        outputs, bias = self.to_wrap(inputs, *args, **kwargs)
        return outputs + self.adapter(inputs), bias


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
    found = [(name, module) for name, module in model.named_modules() if name.endswith(targets)]
    for name, module in found:
        parent, _, own = name.rpartition(".")
        wrapper = AdaptedRouter if isinstance(module, TopKRouter) else AdaptedLinear
        setattr(model.get_submodule(parent), own, wrapper(module))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".adapter." in name)
