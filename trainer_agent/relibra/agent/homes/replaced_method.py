"""A method of one object with another body, until it is put back."""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


def replace_method(owner: object, name: str, by: Callable[..., Any]) -> Callable[[], None]:
    """Let `owner.name` call `by`, and return the function that undoes this.

    A framework may wrap the method again meanwhile. Its wrapper then stays in place, and reaches the plain method.
    """
    plain, held, is_active = getattr(owner, name), vars(owner).get(name), True

    @functools.wraps(plain)
    def call(_: object, *args: Any, **kwargs: Any) -> Any:
        return by(*args, **kwargs) if is_active else plain(*args, **kwargs)

    method = MethodType(call, owner)  # torch's schedulers wrap the step of an optimizer, and need a bound method

    def restore() -> None:
        nonlocal is_active
        is_active = False
        if vars(owner).get(name) is not method:
            return
        if held is not None:
            setattr(owner, name, held)
        else:
            delattr(owner, name)

    setattr(owner, name, method)
    return restore
