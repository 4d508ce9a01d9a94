"""Import megatron-core 0.18 and newer without Triton.

Megatron falls back to torch where Triton is missing, except in the modules of its paged stash: from 0.18 on, these
import Triton whenever megatron is imported, although they need it only if `moe_paged_stash` is on. While such a module
is executed, an empty stand-in takes the place of Triton, so that its kernels can be defined. They cannot run.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MOE = "megatron.core.transformer.moe"
_NEED_TRITON = (f"{_MOE}.paged_stash", f"{_MOE}.ops.paged_stash")
_STAND_INS = ("triton", "triton.language")


def install() -> None:
    """Prepare the import of megatron-core, if Triton is missing."""
    if importlib.util.find_spec("triton") is None:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _NEED_TRITON:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithStandIn(spec.loader)
        return spec


class _WithStandIn(Loader):
    def __init__(self, plain: Loader) -> None:
        self._plain = plain

    def exec_module(self, module: ModuleType) -> None:
        added = {name: _StandIn(name) for name in _STAND_INS if name not in sys.modules}
        sys.modules.update(added)
        try:
            self._plain.exec_module(module)
        finally:
            for name in added:
                del sys.modules[name]


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn("triton.language") if name == "language" else _decorator


def _decorator(*args: Any, **options: Any) -> Any:
    """Return a function unchanged, as a decorator with or without options."""
    return args[0] if args and not options else _decorator
