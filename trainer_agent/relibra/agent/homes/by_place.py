"""State dicts name experts by place. They are refused where a place may not stand for the expert of the same number."""

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from relibra.errors import InvalidInput

Check = Callable[[str], None]
"""Raises if what it is given, the name of a method, would read or write experts by place while they are elsewhere."""


def check_state_dicts(experts: nn.Module, check_reading: Check, check_writing: Check) -> Callable[[], None]:
    """Check every `state_dict` and `load_state_dict` that reaches an experts module. Return the undoing."""

    def before_state_dict(*_: Any) -> None:
        check_reading("state_dict()")

    def before_load_state_dict(*_: Any) -> None:
        check_writing("load_state_dict()")

    reading = experts.register_state_dict_pre_hook(before_state_dict)  # type: ignore[no-untyped-call]
    writing = experts.register_load_state_dict_pre_hook(before_load_state_dict)  # type: ignore[no-untyped-call]

    def restore() -> None:
        reading.remove()
        writing.remove()

    return restore


def check_optimizer_state_dicts(optimizer: Any, check_reading: Check, check_writing: Check) -> Callable[[], None]:
    """Check the `state_dict` and `load_state_dict` of an optimizer, unless its `sharded_state_dict` calls them."""
    undo, depth = ExitStack(), 0

    def replace(name: str, by: Callable[..., Any]) -> None:
        held = vars(optimizer).get(name)
        setattr(optimizer, name, functools.wraps(getattr(optimizer, name))(by))
        undo.callback(setattr, optimizer, name, held) if held is not None else undo.callback(delattr, optimizer, name)

    plain_reading, plain_writing = optimizer.state_dict, optimizer.load_state_dict
    plain_sharded = getattr(optimizer, "sharded_state_dict", None)

    def state_dict(*args: Any, **kwargs: Any) -> Any:
        if not depth:
            check_reading("optimizer.state_dict()")
        return plain_reading(*args, **kwargs)

    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        check_writing("optimizer.load_state_dict()")
        return plain_writing(*args, **kwargs)

    def sharded_state_dict(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        assert plain_sharded is not None
        depth += 1
        try:
            return plain_sharded(*args, **kwargs)
        finally:
            depth -= 1

    replace("state_dict", state_dict)
    replace("load_state_dict", load_state_dict)
    if plain_sharded is not None:
        replace("sharded_state_dict", sharded_state_dict)
    return undo.close


@torch.no_grad()
def write_named(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Copy the tensors of `given` into the parameters of the same names. Names that are not in `own` are left out.

    Raises:
        InvalidInput: a name is missing, or a shape differs. Nothing was written.
    """
    missing = [name for name in own if name not in given]
    if missing:
        raise InvalidInput.of(
            "the named weights", expected=f"all {len(own)} of this rank", got=f"none for {', '.join(missing[:4])}"
        )
    for name, parameter in own.items():
        if given[name].shape != parameter.shape:
            raise InvalidInput.of(name, expected=f"shape {tuple(parameter.shape)}", got=tuple(given[name].shape))
    for name, parameter in own.items():
        parameter.copy_(given[name])
