"""The order that weights bring along when they are loaded under the names of a sharded state dict.

Every rank finds the same order in all parts of a state, also on pipeline stages without MoE layers. So all ranks accept
the state or all refuse it, and a refusal comes before the first parameter is written.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MethodType
from typing import Any

from torch import nn

ORDER = "relibra_order"
"""The key under which a sharded state dict says where all experts of the job were when it was named. Megatron puts the
value into the state that it loads under these names, and never stores it. So such state is known from state by place.
"""
_NAME = "sharded_state_dict"


def orders_in(loaded: Mapping[str, Any], prefix: str, experts: Sequence[str]) -> list[str | None]:
    """Return the orders that loaded state brings along: one for every experts module in it, None where there is none.

    Args:
        loaded: the state that a module loads.
        prefix: the prefix of the module's names.
        experts: the names of the experts modules in the module, without `prefix`; "" for the module itself.
    """
    modules = [f"{prefix}{name}." if name else prefix for name in experts]
    orders = [loaded.get(prefix + ORDER) for prefix in modules if any(key.startswith(prefix) for key in loaded)]
    if prefix + ORDER in loaded:
        orders.append(loaded[prefix + ORDER])
    return orders


def check_state_dicts(
    model: nn.Module,
    experts: Sequence[nn.Module],
    order: Callable[[], str],
    not_stored: Callable[[Any], Any],
    check_reading: Callable[[str], None],
    check_writing: Callable[[str, Sequence[str | None]], None],
) -> Callable[[], None]:
    """Check every `state_dict` and `load_state_dict` that reaches an experts module. Return the undoing.

    A load of the whole model is checked before its first parameter is written. A load of a part is checked in the
    experts modules.

    Args:
        model: a model without wrappers.
        experts: the experts modules in it; may be none.
        order: returns a text for the present places of all experts of the job, equal on all ranks.
        not_stored: wraps an object that a checkpoint does not store and that a load puts beside the weights.
        check_reading: raises if weights may not be read by place; gets the name of the method.
        check_writing: raises if nobody knows the order of what is loaded; gets the name of the method and the orders
            that the state brings along, as `orders_in` returns them. It is not called for state without experts and
            without an order, such as adapters or dense layers alone.
    """
    undo = ExitStack()
    names = [name for name, module in model.named_modules() if any(module is part for part in experts)]

    def before_state_dict(*_: Any) -> None:
        check_reading("state_dict()")

    def before_load(names: Sequence[str], _: nn.Module, loaded: dict[str, Any], prefix: str, *__: Any) -> None:
        orders = orders_in(loaded, prefix, names)
        loaded.pop(prefix + ORDER, None)
        if orders:
            check_writing("load_state_dict()", orders)

    for module, inside in [(model, names), *((part, [""]) for part in experts)]:
        undo.callback(_state_order(module, order, not_stored))
        writing = module.register_load_state_dict_pre_hook(functools.partial(before_load, inside))  # type: ignore[no-untyped-call]
        undo.callback(writing.remove)
    for of_layer in experts:
        reading = of_layer.register_state_dict_pre_hook(before_state_dict)  # type: ignore[no-untyped-call]
        undo.callback(reading.remove)
    return undo.close


def _state_order(module: Any, order: Callable[[], str], not_stored: Callable[[Any], Any]) -> Callable[[], None]:
    """Let the sharded state dict of a module say the order. Return the undoing."""
    if not hasattr(module, _NAME):
        return lambda: None
    held = vars(module).get(_NAME)

    @functools.wraps(getattr(module, _NAME))
    def sharded_state_dict(self: Any, prefix: str = "", *args: Any, **kwargs: Any) -> Any:
        # A deep copy of the module names the tensors of the copy.
        plain = held if held is not None else MethodType(type(self).sharded_state_dict, self)
        named = plain(prefix, *args, **kwargs)
        named[prefix + ORDER] = not_stored(order())
        return named

    method = MethodType(sharded_state_dict, module)

    def restore() -> None:
        if vars(module).get(_NAME) is not method:
            return
        if held is not None:
            setattr(module, _NAME, held)
        else:
            delattr(module, _NAME)

    setattr(module, _NAME, method)
    return restore
