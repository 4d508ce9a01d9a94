"""The consent of all ranks to go on: what one rank finds wrong raises on all ranks, at the same place.

A rank that raises alone leaves the others waiting for it in their next collective.

R ranks, C concerns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from relibra.agent.plans.agreement import gather_tensors, names_of
from relibra.errors import RelibraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that a rank may find wrong and that stops all ranks."""

    what: str
    """The check, for messages."""
    error: type[RelibraError]
    """The error of the ranks that found nothing wrong themselves."""
    advice: str
    """The usual cause and the way out, for these ranks."""


def found_by(check: Callable[[], None]) -> RelibraError | None:
    """Return what `check` finds wrong, None for nothing. Any error counts: the other ranks must learn of it."""
    try:
        check()
    except RelibraError as error:
        return error
    except Exception as error:
        return RelibraError(f"{type(error).__name__}: {error}")
    return None


def raise_on_all(found: Mapping[Concern, RelibraError | None], when: str, group: dist.ProcessGroup) -> None:
    """Collective: return if no rank found anything wrong, else raise on all ranks.

    Args:
        found: by concern, the error of this rank or None. The concerns and their order are equal on all ranks.
        when: the moment, for messages, as in "before the step".
        group: the ranks that go on together, over gloo.

    Raises:
        RelibraError: as `objection` says; or a rank did not take part in time.
    """
    mine = torch.tensor([error is not None for error in found.values()], dtype=torch.int64, device="cpu")
    own = next(filter(None, found.values()), None)
    waiting = f"agreeing to go on {when}" + (f" (this rank: {own})" if own is not None else "")
    error = objection(found, when, [flags.tolist() for flags in gather_tensors(mine, waiting, group)])
    if error is not None:
        raise error


def objection(
    found: Mapping[Concern, RelibraError | None], when: str, flags_RC: Sequence[Sequence[int]]
) -> RelibraError | None:
    """Return what this rank raises: the first concern of which any rank found an error, with this rank's own error.

    Args:
        found: as in `raise_on_all`.
        when: as in `raise_on_all`.
        flags_RC: for every rank and concern, whether the rank found an error.
    """
    for index, (concern, own) in enumerate(found.items()):
        ranks = [rank for rank, flags_C in enumerate(flags_RC) if flags_C[index]]
        if ranks:
            failure = f"{concern.what} {when} failed on {names_of(ranks)}"
            if own is not None:
                return type(own)(f"{failure} (this rank: {own})")
            return concern.error(f"{failure}, whose logs say why. Usually, {concern.advice}")
    return None
