"""Attempts that all ranks make together, and that fail on all of them if they fail on one."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TypeVar

import torch.distributed as dist

from relibra.agent.transport.lost_ranks import noticing_death
from relibra.errors import Unsupported

Result = TypeVar("Result")


def jointly(
    attempts: Iterable[tuple[str, Callable[[], Result]]],
    advice: str,
    group: dist.ProcessGroup,
    undo: Callable[[Result], object] = lambda _: None,
) -> list[Result]:
    """Collective: make this rank's attempts, and return their results if the attempts of all ranks succeed.

    All ranks learn of a failure, so that no rank waits for a failed one in the next collective.

    Args:
        attempts: (name, function) each; the name completes "cannot ...". The first failure skips the rest.
        advice: what to do about a failure.
        group: the ranks.
        undo: releases the result of a successful attempt if the call raises.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: on all ranks, if an attempt of one of them failed.
    """
    refusals: list[str | None] = [None] * dist.get_world_size(group)
    done, refusal, rank = list[Result](), None, dist.get_rank(group)
    with ExitStack() as undone:
        for what, attempt in attempts:
            try:
                done.append(attempt())
            except Exception as error:
                refusal = f"rank {rank} cannot {what} ({error}): {advice}"
                break
            undone.callback(undo, done[-1])
        with noticing_death("sharing memory"):
            dist.all_gather_object(refusals, refusal, group=group)
        for text in filter(None, refusals):
            raise Unsupported(text)
        undone.pop_all()
    return done
