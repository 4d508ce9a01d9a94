"""The token that all trainer ranks of one launch share."""

import os
from collections.abc import Sequence

import torch.distributed as dist

from relibra.errors import InvalidInput
from relibra.wire.launch import ATTEMPT_VARIABLE, process_name


def own_token(attempt: str | None = None) -> str:
    """Return the token that the user set for this rank, as `attempt` or as `RELIBRA_ATTEMPT`; empty if none."""
    return attempt or os.environ.get(ATTEMPT_VARIABLE, "")


def agree_on_token(tokens: Sequence[str], name_of_first: str) -> str:
    """Return the token of a launch: the one that the user set, else the name of the process of rank 0.

    Args:
        tokens: `own_token` of every rank.
        name_of_first: names the process of rank 0, which is its token if it registers the job itself.

    Raises:
        InvalidInput: two ranks have different tokens.
    """
    known = [(token, rank) for rank, token in enumerate(tokens) if token]
    for token, rank in known:
        if token != known[0][0]:
            raise InvalidInput.of(
                ATTEMPT_VARIABLE,
                expected=f"{known[0][0]!r} on all ranks, as on rank {known[0][1]}",
                got=f"{token!r} on rank {rank}; set it once for the whole launch",
            )
    return known[0][0] if known else name_of_first


def shared_attempt() -> str:
    """Collective over all ranks: return a text that all ranks of this launch share, and no other launch.

    The text is `RELIBRA_ATTEMPT` if the environment has it, and otherwise a random text of rank 0. Pass it as `attempt`
    to the `PlannerClient` and `RolloutReporter` of every rank, so that all of them belong to one attempt of the job.
    Agents share it by themselves.

    Raises:
        InvalidInput: two ranks have different texts in their environment.
    """
    mine = own_token(), process_name()
    everyone = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return agree_on_token([token for token, _ in everyone], everyone[0][1])
