"""Weights that come in under names: written completely or not at all."""

from collections.abc import Mapping

import torch
from torch import Tensor

from relibra.errors import InvalidInput


def check_named(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Check that `write_named` can write all parameters of `own`.

    Raises:
        InvalidInput: a name is missing, a value is no tensor, or a shape differs.
    """
    missing = [name for name in own if name not in given]
    if missing:
        raise InvalidInput.of(
            "the named weights", expected=f"all {len(own)} of this rank", got=f"none for {', '.join(missing[:4])}"
        )
    for name, parameter in own.items():
        weight = given[name]  # a mapping may read it from a file now
        if not isinstance(weight, Tensor):
            raise InvalidInput.of(name, expected="a tensor", got=type(weight).__name__)
        if weight.shape != parameter.shape:
            raise InvalidInput.of(name, expected=f"shape {tuple(parameter.shape)}", got=tuple(weight.shape))


@torch.no_grad()
def write_named(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `given` into the parameters of the same names. Names that are not in `own` are left out."""
    for name, parameter in own.items():
        parameter.copy_(given[name])
