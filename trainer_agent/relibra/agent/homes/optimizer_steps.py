"""The steps of an optimizer: what trains is checked before each one, and remembered after it."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from relibra.agent.homes.replaced_method import replace_method

_STEPS = ("step", "step_with_ready_grads")
"""The methods of megatron's and torch's optimizers that change the weights. One of them may call the other."""


def around_steps(optimizer: Any, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call `before` and `after` around every step of an optimizer. Return the function that undoes this.

    Args:
        optimizer: a megatron or torch optimizer, chained or not. Steps of its parts alone go unnoticed.
        before: may raise; then the optimizer does not step.
        after: called if the step returned.
    """
    undo, depth = ExitStack(), 0

    def around(plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:
                return plain(*args, **kwargs)
            before()
            depth += 1
            try:
                result = plain(*args, **kwargs)
            finally:
                depth -= 1
            after()
            return result

        return step

    for name in _STEPS:
        if hasattr(optimizer, name):
            undo.callback(replace_method(optimizer, name, around(getattr(optimizer, name))))
    return undo.close
