"""Tests that run on ranks: the body of a test is a function that every rank of a layout calls.

    from harness.distributed.layout import EP4
    from harness.distributed.on_ranks import IS_RANK, on_ranks

    if IS_RANK:  # pytest reads this file without torch and megatron
        from harness.distributed.networks import Trained

    @on_ranks(EP4)
    def test_S5_weights_are_equal(cluster):
        assert Trained(cluster).weights() == ...

The test passes if no rank raises. Other parameters of the function are those of pytest's `parametrize`.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest

from harness.distributed.layout import Layout

VARIABLE = "RELIBRA_TEST_RANK"
IS_RANK = VARIABLE in os.environ
"""Whether this process is a rank, or starts ranks."""


def on_ranks(*layouts: Layout, **options: bool) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that makes a function of ranks a test, once for each layout; all but the first are long.

    Args:
        layouts: how the ranks are arranged. Without any, `parametrize` gives the test its `layout`.
        options: those of `Ranks.run`.
    """

    def decorate(function: Callable[..., None]) -> Any:
        if IS_RANK:
            return function
        arguments = list(inspect.signature(function).parameters.values())[1:]

        def test(ranks: Any, layout: Layout, **values: Any) -> None:
            ranks.run(layout, function, **options, **values)

        test.__name__, test.__doc__, test.__module__ = function.__name__, function.__doc__, function.__module__
        ours = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("ranks", "layout")]
        test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*ours, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in arguments)]
        )
        test.pytestmark = [*getattr(function, "pytestmark", []), pytest.mark.distributed.mark]  # type: ignore[attr-defined]
        if not layouts:
            return test
        others = (pytest.param(each, marks=pytest.mark.long) for each in layouts[1:])
        return pytest.mark.parametrize("layout", [layouts[0], *others], ids=str)(test)

    return decorate
