"""The attributes of a framework that a plug-in relies on; a version that lacks one is refused by name at start."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from relibra.errors import Unsupported

Points = Mapping[str, Sequence[str]]
"""Attributes of a module by their path, each with the parameters that it must have."""


def check_points(module: Any, wanted: Points, *, version: str, without: str) -> None:
    """Check that a module of a framework has the attributes that a plug-in relies on.

    Args:
        module: the module.
        wanted: the attributes.
        version: the framework and the version that the plug-in was written against.
        without: what the user may remove to train without balancing.

    Raises:
        Unsupported: an attribute or a parameter is missing; the message names all that are.
    """
    missing = [text for path, parameters in wanted.items() for text in _missing(module, path, parameters)]
    if missing:
        raise Unsupported(
            f"expected {version} or one like it, and {module.__name__} lacks {', '.join(missing)}; use {version}, or "
            f"remove {without} to train without balancing"
        )


def _missing(module: Any, path: str, parameters: Sequence[str]) -> list[str]:
    attribute = module
    for name in path.split("."):
        if not hasattr(attribute, name):
            return [path]
        attribute = getattr(attribute, name)
    if not parameters:
        return []
    has = inspect.signature(attribute).parameters
    return [f"the parameter {parameter} of {path}" for parameter in parameters if parameter not in has]
