"""What modules of SkyRL need when a process imports them, and imports nothing large itself."""

import sys
import typing
from collections.abc import Callable
from importlib.abc import MetaPathFinder


def typed_dicts() -> None:
    """Give SkyRL's modules another TypedDict: SkyRL asks for Python 3.12, because pydantic takes no older one."""
    if sys.version_info < (3, 12):
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict


def before(module: str, install: Callable[[], None]) -> None:
    """Call a function right before this process imports a module, and not at all if it never does."""
    sys.meta_path.insert(0, _Before(module, install))


class _Before(MetaPathFinder):
    def __init__(self, module: str, install: Callable[[], None]) -> None:
        self._module, self._install = module, install

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._module and self in sys.meta_path:
            sys.meta_path.remove(self)
            self._install()
