"""The code of SGLang and vLLM that records routed experts, from their published wheels, without CUDA.

`python tests/harness/engine_code.py DIR` fetches the wheels from the package index and keeps their Python files in DIR.
Tests find them by `RELIBRA_FRAMEWORKS=DIR`, and are skipped without it.
"""

import ast
import importlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

RELEASES = {"sglang": "0.5.23", "vllm": "0.33.0"}
"""The newest releases when the tests were written."""


def release(name: str, folder: Path) -> Path:
    """Return the folder of an engine's release below `folder`."""
    return folder / f"{name}-{RELEASES[name]}"


@contextmanager
def imported(root: Path, package: str, names: Sequence[str], given: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield modules of an engine. All else that they import from the engine is stood in for by classes without content.

    Args:
        root: the folder that has the package.
        package: the engine's package.
        names: the modules, by their path in the package.
        given: attributes of modules that are stood in for, by the path of module and attribute in the package.
    """
    real = {f"{package}.{name}" for name in names}
    finder = _Finder(root, package, real, {f"{package}.{name}": value for name, value in given.items()})
    sys.meta_path.insert(0, finder)
    try:
        yield [importlib.import_module(f"{package}.{name}") for name in names]
    finally:
        sys.meta_path.remove(finder)
        for name in [each for each in sys.modules if each.split(".")[0] == package]:
            del sys.modules[name]


def function(root: Path, module: str, name: str, **names: Any) -> Any:
    """Return one function of a module that cannot be imported, without its decorators.

    Args:
        root: the folder that has the engine's package.
        module: the module.
        name: the name of the function, which may be a method of any class.
        names: what the function uses of its module.
    """
    tree = ast.parse((root / Path(*module.split("."))).with_suffix(".py").read_text())
    (found,) = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name]
    found.decorator_list = []
    code = ast.Module([ast.parse("from __future__ import annotations").body[0], found], [])
    exec(compile(code, f"{module}.{name}", "exec"), names)
    return names[name]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, root: Path, package: str, real: set[str], given: Mapping[str, Any]) -> None:
        self._root, self._package, self._real, self._given = root, package, real, given

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] != self._package:
            return None
        if name in self._real:
            return spec_from_file_location(name, (self._root / Path(*name.split("."))).with_suffix(".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandIn(spec.name)
        for path, value in self._given.items():
            owner, _, attribute = path.rpartition(".")
            if owner == spec.name:
                setattr(module, attribute, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module without content."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (_Anything,), {}))
        return getattr(self, name)


class _Anything:
    def __init__(self, *_: object, **__: object) -> None: ...
    def __class_getitem__(cls, _: object) -> type:
        return cls

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def fetch(folder: Path) -> None:
    """Fetch the Python files of all releases."""
    for name, version in RELEASES.items():
        with tempfile.TemporaryDirectory() as wheels:
            options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", wheels]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            with zipfile.ZipFile(wheel) as file:
                python = [each for each in file.namelist() if each.endswith(".py")]
                file.extractall(release(name, folder), python)
        print(f"{name}: {version} in {release(name, folder)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    fetch(Path(sys.argv[1]))
