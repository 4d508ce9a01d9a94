from types import SimpleNamespace
from typing import Any

import pytest

from relibra.errors import Unsupported
from relibra.plugins.verl.points import check


class Engine:
    def to(self, device: str) -> None: ...


def test_what_another_version_lacks_is_named() -> None:
    module: Any = SimpleNamespace(__name__="verl.engine", Engine=Engine)
    check(module, {"Engine.to": ("device",)})
    wanted = {"Engine.to": ("device", "grad"), "Engine.load_checkpoint": ("path",)}
    with pytest.raises(Unsupported, match=r"lacks the parameter grad of Engine\.to, Engine\.load_checkpoint; use verl"):
        check(module, wanted)
