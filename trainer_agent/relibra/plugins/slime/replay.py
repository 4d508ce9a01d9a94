"""What slime's and miles' own replays have for the next forward of each router, told to the agent before that forward.

Both frameworks fill the replays of a rollout before it trains: those of R3 from the rollout, and those of R2 in the
pass over old log-probabilities. So ranks can count the tokens of a whole micro-batch before its first layer runs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from relibra.agent import Agent

_REPLAYS_FORWARD = "replay_forward"


def listen_to_replays(agent: Agent, chunks: Sequence[nn.Module], stage: Callable[[], str]) -> None:
    """Let the agent of a model know what each router's replay has; nothing if not all routers have one.

    Args:
        agent: attached to the chunks.
        chunks: the model.
        stage: returns what the replays of this process do now, in the words of both frameworks; empty if nothing.
    """
    replays = list(_replays(chunks))
    if len(replays) == len(agent.layers):
        for index, replay in zip(sorted(agent.layers), replays, strict=True):
            agent.layers[index].listen(partial(_next_forward, replay, stage))


def _replays(chunks: Sequence[nn.Module]) -> Iterator[Any]:
    """Yield the replays of routers, in order of layers."""
    for chunk in chunks:
        for module in chunk.modules():
            if hasattr(module, "routing_replay"):
                yield module.routing_replay


def _next_forward(replay: Any, stage: Callable[[], str]) -> Tensor | None:
    """Return the experts `[T, K]` that a router's next forward takes from its replay; None if it takes none."""
    recorded, index = replay.top_indices_list, replay.forward_index
    if stage() != _REPLAYS_FORWARD or index >= len(recorded):
        return None
    expert_TK: Tensor = recorded[index]
    # miles has -1 for tokens without routes, and sends them to the first experts.
    return expert_TK.where(expert_TK >= 0, torch.arange(expert_TK.shape[1], dtype=expert_TK.dtype))
