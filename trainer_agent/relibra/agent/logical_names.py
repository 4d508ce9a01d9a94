"""Names of parameters that do not depend on where an expert lives.

L layers, S home slots of this rank.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent.experts import Experts


def logical_named_parameters(
    models: Sequence[nn.Module], experts: Sequence[Experts], expert_LS: NDArray[np.int32]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of `models` with `local_experts.<slot>` renamed to `local_experts.<logical expert>`.

    Args:
        models: without wrappers around them.
        experts: of every MoE layer.
        expert_LS: logical expert in every home slot of this rank.
    """
    layer_of = {id(each.module): layer for layer, each in enumerate(experts)}
    for model in models:
        prefixes = {
            f"{name}.local_experts.": layer_of[id(module)]
            for name, module in model.named_modules()
            if id(module) in layer_of
        }
        for name, parameter in model.named_parameters():
            yield _logical(name, prefixes, expert_LS), parameter


def _logical(name: str, prefixes: dict[str, int], expert_LS: NDArray[np.int32]) -> str:
    for prefix, layer in prefixes.items():
        if name.startswith(prefix):
            slot, _, rest = name.removeprefix(prefix).partition(".")
            return f"{prefix}{expert_LS[layer, int(slot)]}.{rest}"
    return name
