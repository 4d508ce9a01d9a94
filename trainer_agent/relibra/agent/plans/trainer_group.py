"""The trainer ranks of one launch, as the planner knows them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.distributed as dist

from relibra.errors import InvalidInput
from relibra.wire.launch import ATTEMPT_VARIABLE, process_name, this_launch


class RankLaunch(NamedTuple):
    """What one rank knows about its launch, which it tells all other ranks once."""

    token: str
    """The token that this process registers with, see `PlannerClient`."""
    is_shared: bool
    """Whether the user gave the token, so that other processes of the launch have it too."""
    owner: str
    """`<host>:<pid>` of the process."""
    process: str
    """A text that names the process."""

    @classmethod
    def of_this_process(cls, attempt: str | None = None) -> "RankLaunch":
        """Return the launch of this process.

        Args:
            attempt: the token; by default `RELIBRA_ATTEMPT` in the environment, and without it a random one.
        """
        launch = this_launch(attempt)
        is_shared = bool(attempt or os.environ.get(ATTEMPT_VARIABLE))
        return cls(token=launch.token, is_shared=is_shared, owner=launch.owner, process=process_name())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerGroup:
    """The trainer ranks of one launch. All fields but `leads` are equal on all of them."""

    token: str
    """The token of the launch: the one that the user gave, else that of rank 0, which may register the job itself."""
    is_shared: bool
    """Whether the user gave the token, so that the process that registers the job has it too."""
    name: str
    """A text that names this group, and no other that ever ran."""
    owner: str
    """`<host>:<pid>` of rank 0, for people."""
    leads: bool
    """Whether this rank keeps the attempt alive for the whole group."""

    @classmethod
    def of(cls, launches: Sequence[RankLaunch], rank: int) -> "TrainerGroup":
        """Return the group of all ranks, as `rank` sees it.

        Args:
            launches: what every rank knows, by rank.
            rank: the rank of the caller.

        Raises:
            InvalidInput: two ranks were given different tokens.
        """
        first = launches[0]
        given = [(each.token, number) for number, each in enumerate(launches) if each.is_shared]
        for token, number in given:
            if token != given[0][0]:
                raise InvalidInput.of(
                    ATTEMPT_VARIABLE,
                    expected=f"{given[0][0]!r} on all ranks, as on rank {given[0][1]}",
                    got=f"{token!r} on rank {number}; set it once for the whole launch",
                )
        return cls(
            token=given[0][0] if given else first.token,
            is_shared=bool(given),
            name=first.process,
            owner=first.owner,
            leads=rank == 0,
        )

    @classmethod
    def of_all_ranks(cls) -> "TrainerGroup":
        """Collective over all ranks: return the group of this launch."""
        mine = RankLaunch.of_this_process()
        told = [mine] * dist.get_world_size()
        dist.all_gather_object(told, mine)
        return cls.of(told, dist.get_rank())

    @classmethod
    def alone(cls, attempt: str | None = None) -> "TrainerGroup":
        """Return the group of this process alone."""
        return cls.of([RankLaunch.of_this_process(attempt)], 0)


def shared_attempt() -> str:
    """Collective over all ranks: return a text that all ranks of this launch share, and no other launch.

    The text is `RELIBRA_ATTEMPT` if the environment has it, and otherwise a random text of rank 0. Pass it as `attempt`
    to the `PlannerClient` and `RolloutReporter` of every rank, so that all of them belong to one attempt of the job.
    Agents find the attempt by themselves.

    Raises:
        InvalidInput: two ranks have different texts in their environment.
    """
    return TrainerGroup.of_all_ranks().token
