"""What a framework exports with a plug-in, beside exports by place and exports for which experts move back."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from harness.trained import unequal
from relibra.agent import Agent
from relibra.agent.homes.homes import Homes
from relibra.agent.homes.snapshot import Snapshot
from relibra.plugins import logical_export

Exported = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """An export of a plug-in after a reorder, beside the same export in two other ways."""

    moved: list[str]
    """The names of tensors that differ if experts move to their original places and back."""
    by_place: list[str]
    """The names of tensors that differ if experts keep the names of their places."""
    sent_bytes: int
    """What this rank sent to move experts."""
    sent_bytes_if_moved: int


def compared(export: Callable[[], Exported]) -> Compared:
    """Export after a reorder in three ways, collective over all ranks."""
    with _counting_sent_bytes() as sent:
        exported = export()
    with _counting_sent_bytes() as sent_if_moved, mock.patch.object(Agent, "copying", _moving_back):
        moved = export()
    with by_place():
        permuted = export()
    return Compared(
        moved=unequal(moved, exported),
        by_place=unequal(permuted, exported),
        sent_bytes=sum(sent),
        sent_bytes_if_moved=sum(sent_if_moved),
    )


def by_place() -> AbstractContextManager[Any]:
    """Let exports in the body name experts by place, as if nobody minded that they have moved."""
    return mock.patch.object(logical_export, "logical", lambda weights, **_: iter(weights))


@contextmanager
def _moving_back(agent: Agent) -> Iterator[Snapshot]:
    with agent.at_original_places():
        yield agent.original_order


@contextmanager
def _counting_sent_bytes() -> Iterator[list[int]]:
    """Yield a list to which every move of experts in the body appends the bytes that this rank sent."""
    sent: list[int] = []
    move = Homes._move

    def counted(self: Homes, *args: Any) -> Any:
        sent_bytes, failure = move(self, *args)
        sent.append(sent_bytes)
        return sent_bytes, failure

    with mock.patch.object(Homes, "_move", counted):
        yield sent
