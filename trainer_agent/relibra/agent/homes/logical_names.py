"""Names of parameters that do not depend on where an expert lives."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from relibra.agent.experts import Experts


def logical_named_parameters(
    models: Sequence[nn.Module], experts: Mapping[int, Experts], logical_experts: Callable[[int], Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `models`, those of experts with the logical expert in the place of the slot.

    Args:
        models: without wrappers around them; names of several begin with `model<index>.`.
        experts: of this rank's MoE layers, by layer.
        logical_experts: layer -> the logical expert in every home slot of this rank.
    """
    layer_of = {id(each.module): layer for layer, each in experts.items()}
    for index, model in enumerate(models):
        chunk = f"model{index}." if len(models) > 1 else ""
        renamed: dict[str, str] = {}
        for prefix, module in model.named_modules():
            layer = layer_of.get(id(module))
            if layer is not None:
                renamed |= _renamed(prefix, experts[layer], logical_experts(layer))
        for name, parameter in model.named_parameters():
            yield chunk + renamed.get(name, name), parameter


def _renamed(prefix: str, experts: Experts, logical_experts: Sequence[int]) -> dict[str, str]:
    dot = f"{prefix}." if prefix else ""
    return {
        dot + experts.name(tensor, slot): dot + experts.name(tensor, logical)
        for slot, logical in enumerate(logical_experts)
        for tensor in range(len(experts.parameters[slot]))
    }
