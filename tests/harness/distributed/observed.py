"""What ranks observe: values of all ranks, refusals, and differences between balanced and plain training."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.differences import largest
from relibra.errors import RelibraError

TOLERANCE = 1e-5
"""The largest relative difference to plain training in fp32."""
NOT_REFUSED = "not refused"


def gathered(value: Any) -> list[Any]:
    """Collective: return the values of all ranks."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def refusal(action: Callable[[], object]) -> str:
    """Return the error with which relibra refuses an action, or `NOT_REFUSED`."""
    try:
        action()
    except RelibraError as error:
        return f"{type(error).__name__}: {error}"
    return NOT_REFUSED


def raised_by(action: Callable[[], object]) -> str:
    """Return the error of any kind that an action raises, or `nothing`."""
    try:
        action()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@contextmanager
def logged() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns the messages that this rank has logged in the body."""
    handler = BufferingHandler(capacity=sys.maxsize)
    logging.getLogger().addHandler(handler)
    try:
        yield lambda: [record.getMessage() for record in handler.buffer]
    finally:
        logging.getLogger().removeHandler(handler)


def relative(got: Tensor, want: Tensor) -> float:
    """Return the largest difference of an element, relative to the largest element that is wanted."""
    return float((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-12))


def equal(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    """Return whether all tensors have equal names and bits."""
    return got.keys() == want.keys() and all(torch.equal(got[name], want[name]) for name in want)


class Differences:
    """The largest relative difference of each kind that was noted on this rank."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    def note(self, kind: str, got: Any, want: Any) -> None:
        """Note tensors or numbers, by name or in order."""
        if isinstance(want, dict):
            assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())[:4]
            pairs = [(got[name], want[name]) for name in want]
        else:
            pairs = list(zip(got, want, strict=True))
        if pairs:
            new = [relative(torch.as_tensor(g), torch.as_tensor(w)) for g, w in pairs]
            self.of[kind] = largest([self.of.get(kind, 0.0), *new])

    def worst(self) -> dict[str, float]:
        """Collective: return the largest difference of each kind over all ranks that have it."""
        noted = [item for of_rank in gathered(self.of) for item in of_rank.items()]
        return {kind: largest(value for other, value in noted if other == kind) for kind in dict(noted)}
