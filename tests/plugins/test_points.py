import logging
from types import SimpleNamespace
from typing import Any

import pytest

from relibra.errors import Unsupported
from relibra.plugins.points import Points, check_points


class Engine:
    def to(self, device: str) -> None: ...

    def train(self, batch: Any, *args: Any, lazily: bool = False, _ray_trace_ctx: Any = None) -> None: ...


def check(wanted: Points) -> None:
    module: Any = SimpleNamespace(__name__="verl.engine", Engine=Engine)
    check_points(module, wanted, version="verl 0.9.1", without="relibra from external_lib")


def test_an_attribute_or_parameter_that_another_version_lacks_is_named() -> None:
    check({"Engine.to": ("device",)})
    missing = (
        r"lacks the parameter grad of Engine\.to, Engine\.load_checkpoint; use verl 0\.9\.1, or remove relibra from"
    )
    with pytest.raises(Unsupported, match=missing):
        check({"Engine.to": ("device", "grad"), "Engine.load_checkpoint": ("path",)})


def test_S9_a_parameter_that_another_version_has_added_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    check({"Engine.train": ("batch", "lazily"), "Engine.to": ()})
    check({"Engine.train": ("batch", ...)})
    assert not caplog.messages
    check({"Engine.train": ("batch",)})
    (said,) = caplog.messages
    assert said.startswith("relibra was written against verl 0.9.1, and verl.engine has parameters since then")
    assert said.endswith("passes on: lazily of Engine.train")
