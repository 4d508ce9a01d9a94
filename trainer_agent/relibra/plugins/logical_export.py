"""The export of a framework under the names of the experts that it holds, while no expert moves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from relibra.agent import Agent
from relibra.integrations.export import logical
from relibra.routing import ModelLayers


class Renamed(Protocol):
    """A function that gives every expert of a stream its own name; `logical` with a table and layers."""

    def __call__(self, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True) -> Iterator[tuple[str, Any]]:
        """Return the stream under logical names."""


@contextmanager
def exporting(agent: Agent, layers: ModelLayers) -> Iterator[Renamed]:
    """Collective over all ranks: export by place in the body, and send what the yielded function returns.

    The names come in another order than the framework's own. So a receiver must get them with the tensors, and not know
    them from an earlier export.

    Raises:
        RelibraError: on all ranks, if the modules of one hold weights that were written behind the agent's back; or if
            experts moved in the body.
    """
    agent.check_weights()  # a rank that raised alone would leave the others in the collectives of the export
    with agent.copying() as order:
        yield partial(logical, expert_of_place_LE=order.expert_of_place_LE, layers=layers)


def logical_export(
    agent: Agent, layers: ModelLayers, weights: Iterable[tuple[str, Any]], *, is_whole: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield a framework's stream with each expert under its own name. The first read is collective over all ranks.

    Args:
        agent: the agent of this rank.
        layers: the layers of the model.
        weights: the stream, which names experts by place as Hugging Face does.
        is_whole: whether the stream has all weights of the model; see `logical`.

    Raises:
        RelibraError: see `exporting`.
        Unsupported: a name of experts cannot be understood; see `logical`.
    """
    with exporting(agent, layers) as renamed:
        yield from renamed(weights, is_whole=is_whole)
