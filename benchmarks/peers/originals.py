"""Import a module of a checkout without the packages around it, which ask for a GPU, a server or a whole engine."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType


def import_original(root: Path, module: str, stand_ins: Mapping[str, Mapping[str, object]] | None = None) -> ModuleType:
    """Import `module` as if `root` were on the path and every package above the module had an empty `__init__`.

    Args:
        root: the folder that holds the module's first package.
        module: the dotted name.
        stand_ins: modules that the imported one asks for and does not need, with what it takes from them.

    Raises:
        ImportError: the checkout does not have the module, or the module needs another one.
    """
    stand_ins = stand_ins or {}
    packages = {name.partition(".")[0] for name in (module, *stand_ins)}
    kept = _take_out(packages)
    try:
        for name in (module, *stand_ins):
            for parent in _parents(name):
                package = ModuleType(parent)
                package.__path__ = [str(root / parent.replace(".", "/"))]
                sys.modules.setdefault(parent, package)
        for name, contents in stand_ins.items():
            stand_in = ModuleType(name)
            vars(stand_in).update(contents)
            sys.modules[name] = stand_in
        imported = import_module(module)
    finally:
        _take_out(packages)
        sys.modules.update(kept)
    sys.modules[module] = imported  # numba looks for the module of a function when it compiles
    return imported


def _take_out(packages: set[str]) -> dict[str, ModuleType]:
    """Forget all modules of the packages; return them by name."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in packages}


def _parents(name: str) -> Iterator[str]:
    """Yield the packages above a module, outermost first."""
    parts = name.split(".")
    yield from (".".join(parts[:depth]) for depth in range(1, len(parts)))
