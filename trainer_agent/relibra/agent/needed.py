"""Whether the imported megatron-core has what the agent needs. It imports the modules of the table by name.

Frameworks replace parts of megatron at run time, so this looks at what is there when a job attaches. Before a job,
`relibra doctor` runs this module, which says as JSON what the installed megatron-core lacks.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from relibra.agent.needs import NEEDS, RAN, REPLAY_NEEDS, TRANSFORMER_ENGINE_NEEDS, Need, Use, mismatch
from relibra.errors import Unsupported

_READ_ATTRIBUTES = ("mcore_bridge",)
"""Packages that convert weights and call neither `named_parameters` nor `state_dict` for experts."""


def check_needs(needs: Iterable[Need] = NEEDS) -> None:
    """Check the modules of megatron-core.

    Raises:
        Unsupported: something is missing, or has another signature; the message names all of it.
    """
    _refuse([lack for need in needs if need.use is not Use.HELD and (lack := _lack(need)) is not None])


def check_instances(instances: Iterable[Any], needs: Iterable[Need] = (*NEEDS, *TRANSFORMER_ENGINE_NEEDS)) -> None:
    """Check objects that megatron has built.

    Raises:
        Unsupported: an instance lacks an attribute that the agent reads; the message names all of them.
    """
    of_class: dict[str, list[Need]] = {}
    for need in needs:
        if need.use is Use.HELD:
            of_class.setdefault(need.name.partition(".")[0], []).append(need)
    lacks = (
        f"{need}, which a {type(instance).__name__} lacks"
        for instance in instances
        for base in type(instance).__mro__
        for need in of_class.get(base.__name__, ())
        if not hasattr(instance, need.name.partition(".")[2])
    )
    _refuse(list(dict.fromkeys(lacks)))


def find_lacks(needs: Iterable[Need]) -> list[str]:
    """Return what megatron-core lacks, in words, before it has built anything.

    Attributes of instances are looked for in the sources of their classes, so one that a docstring names passes.
    """
    lacks = (_unnamed(need) if need.use is Use.HELD else _lack(need) for need in needs)
    return [lack for lack in lacks if lack is not None]


def advice_on_version(version: str) -> str | None:
    """Return a warning if the tests did not run on this version of megatron-core."""
    if ".".join(version.split(".")[:2]) in RAN:
        return None
    return (
        f"megatron-core {version} has every attribute and signature that relibra's agent needs, but the tests did not "
        "run on it; compare the losses of the first steps with those of a run without the agent"
    )


def advice_on_exports() -> str | None:
    """Return a warning if a package is loaded whose exports the agent cannot see."""
    loaded = [name for name in _READ_ATTRIBUTES if name in sys.modules]
    if not loaded:
        return None
    return (
        f"{', '.join(loaded)} reads experts as attributes of their modules, so the agent does not see it and cannot "
        "refuse an export by place. Run its exports and saves inside `with agent.at_original_places():` and its loads "
        "inside `with agent.restoring(agent.original_order):`, or experts get the names of others without a word; "
        "relibra's plug-in for ms-swift does this by itself"
    )


def _refuse(lacks: list[str]) -> None:
    if lacks:
        version = importlib.import_module("megatron.core").__version__
        raise Unsupported(
            f"relibra's agent does not support megatron-core {version} as installed or changed here, because it hooks "
            f"into what this one lacks: {'; '.join(lacks)}; use versions that the tests ran on "
            "(docs/integrations/versions.md), or undo the change"
        )


def _lack(need: Need) -> str | None:
    try:
        target: Any = importlib.import_module(need.module)
        for name in need.name.split("."):
            target = getattr(target, name)
    except (ImportError, AttributeError) as error:
        return f"{need}: {error}"
    if need.use is Use.READ:
        return None
    differs = mismatch(need, parameters_of(target))
    return None if differs is None else f"{need}: it {differs}"


def _unnamed(need: Need) -> str | None:
    """Return a need of an attribute that its class and megatron's bases of it never name; None if there is no class."""
    owner, _, attribute = need.name.partition(".")
    try:
        of_instances = getattr(importlib.import_module(need.module), owner, None)
    except ImportError:
        return None
    if not inspect.isclass(of_instances):
        return None
    root = need.module.partition(".")[0]
    sources = (inspect.getsource(base) for base in inspect.getmro(of_instances) if base.__module__.startswith(root))
    return None if any(re.search(rf"\b{attribute}\b", source) for source in sources) else str(need)


def parameters_of(function: Callable[..., Any]) -> dict[str, bool]:
    """Return the parameters as `mismatch` takes them."""
    kinds = inspect.Parameter
    stars: dict[object, str] = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
    return {
        stars.get(parameter.kind, "") + parameter.name: parameter.default is kinds.empty and parameter.kind not in stars
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != "self"
    }


def _main() -> None:
    version = importlib.import_module("megatron.core").__version__
    found = {"version": version, "num_needs": len(NEEDS), "lacks": find_lacks(NEEDS), "ran": RAN}
    print(json.dumps(found | {"lacks_of_replay": find_lacks(REPLAY_NEEDS)}))


if __name__ == "__main__":
    _main()
