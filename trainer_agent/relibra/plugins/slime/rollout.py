"""The rollout manager of slime or miles reports each sample where it finishes, while others are generated.

The manager is an actor of Ray, and has no hook for relibra. The first training process has a handle of the manager, and
sends `report_samples` there. No file is changed: `generate_and_rm` is wrapped, by which both generate each sample.
"""

import functools
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from relibra.plugins.rollout_stream import stream

_ABORTED = "aborted"


def report_samples(manager: Any, modules: Sequence[str]) -> None:
    """Report the samples of a manager from now on; a second call does nothing. Ray calls it in its actor.

    Args:
        manager: the rollout manager.
        modules: modules that have a `generate_and_rm` of their own. Those that the framework lacks generate nothing.
    """
    for name in modules:
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            continue
        if not hasattr(module.generate_and_rm, "relibra_reports"):
            module.generate_and_rm = _reporting(module.generate_and_rm)  # type: ignore[attr-defined]


def _reporting(generate: Any) -> Any:
    @functools.wraps(generate)
    async def generate_and_rm(*args: Any, evaluation: bool = False, **named: Any) -> Any:
        result = await generate(*args, evaluation=evaluation, **named)
        if not evaluation:
            for sample in _samples(result):
                if sample.status.value != _ABORTED:
                    stream().report(sample.tokens, sample.rollout_routed_experts)
        return result

    generate_and_rm.relibra_reports = True  # type: ignore[attr-defined]
    return generate_and_rm


def _samples(result: Any) -> Iterator[Any]:
    """Yield the samples of a result; a custom function may return several for one prompt."""
    if isinstance(result, list):
        for part in result:
            yield from _samples(part)
    else:
        yield result
