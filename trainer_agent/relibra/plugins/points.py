"""The attributes of a framework that a plug-in relies on; a version that lacks one is refused by name at start.

A parameter that a newer version has added is passed on and named in the log, because nobody has run it.
"""

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from relibra.errors import Unsupported

log = logging.getLogger(__name__)

Points = Mapping[str, Sequence[str | EllipsisType]]
"""Attributes of a module by their path, each with its parameters. With `...` it may have others, and without any
parameters none is looked at."""
_ADDED = ("self", "cls", "_ray_trace_ctx")
"""Parameters that Python adds, and that Ray adds to the methods of every actor."""
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    missing, new = list[str](), list[str]()
    for path, parameters in wanted.items():
        try:
            attribute = _attribute(module, path)
        except AttributeError:
            missing.append(path)
            continue
        if parameters:
            has = _parameters(attribute)
            known = [name for name in parameters if isinstance(name, str)]
            missing += [f"the parameter {name} of {path}" for name in known if name not in has]
            if ... not in parameters:
                new += [f"{name} of {path}" for name in has if name not in known]
    if missing:
        raise Unsupported(
            f"expected {version} or one like it, and {module.__name__} lacks {', '.join(missing)}; use {version}, or "
            f"remove {without} to train without balancing"
        )
    if new and os.environ.get("RANK", "0") == "0":
        log.warning(
            "relibra was written against %s, and %s has parameters since then, which relibra passes on: %s",
            version,
            module.__name__,
            ", ".join(new),
        )


def _attribute(module: Any, path: str) -> Any:
    """Return an attribute of a module; AttributeError if there is none."""
    attribute = module
    for name in path.split("."):
        attribute = getattr(attribute, name)
    return attribute


def _parameters(function: Any) -> list[str]:
    """Return the parameters of a function that have a name of their own."""
    parameters = inspect.signature(function).parameters
    return [name for name, parameter in parameters.items() if name not in _ADDED and parameter.kind not in _COLLECTING]
