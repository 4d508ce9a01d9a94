"""Names of parameters that do not depend on where an expert lives."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from relibra.agent.experts import Experts


def logical_named_parameters(
    models: Sequence[nn.Module], experts: Mapping[int, Experts], logical_experts: Callable[[int], Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `models` with `local_experts.<slot>` renamed to `local_experts.<logical expert>`.

    Args:
        models: without wrappers around them; names of several begin with `model<index>.`.
        experts: of this rank's MoE layers, by layer.
        logical_experts: layer -> the logical expert in every home slot of this rank.
    """
    layer_of = {id(each.module): layer for layer, each in experts.items()}
    for index, model in enumerate(models):
        chunk = f"model{index}." if len(models) > 1 else ""
        prefixes = {
            f"{name}.local_experts.": logical_experts(layer_of[id(module)])
            for name, module in model.named_modules()
            if id(module) in layer_of
        }
        for name, parameter in model.named_parameters():
            yield chunk + _logical(name, prefixes), parameter


def _logical(name: str, prefixes: Mapping[str, Sequence[int]]) -> str:
    for prefix, logical_experts in prefixes.items():
        if name.startswith(prefix):
            slot, _, rest = name.removeprefix(prefix).partition(".")
            return f"{prefix}{logical_experts[int(slot)]}.{rest}"
    return name
