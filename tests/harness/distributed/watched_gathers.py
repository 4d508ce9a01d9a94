"""The all-gathers of counts by which an agent splits tokens, and the counts that it used."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed.observed import gathered
from relibra.agent import Agent, StepOutcome
from relibra.agent.cells.cells import SlotTable
from relibra.agent.cells.look_ahead import LookAhead
from relibra.agent.cells.micro_batch import MicroBatch
from relibra.agent.cells.token_split import TokenSplit


class Watched:
    """The all-gathers of an agent's counts in one phase, and the counts that its splits used.

    Args:
        agent: with a step open.
        num_micro_batches: of the phase.
    """

    def __init__(self, agent: Agent, num_micro_batches: int) -> None:
        self._group, cells = agent._groups.ep, agent._opener.cells
        self._members, self._ep_rank = dist.get_process_group_ranks(self._group), dist.get_rank(self._group)
        self._num_experts = cells.num_experts
        chunks = {tuple(layer.look_ahead._chunk) for layer in agent.layers.values()}
        sizes = [
            sum(cells.is_split(index, layer) for layer in chunk)
            for index in range(num_micro_batches)
            for chunk in chunks
        ]
        self.ahead = sorted(size for size in sizes if size)
        """The cells of every all-gather, if ranks gather ahead of forwards."""
        self.by_cell = [1] * sum(sizes)
        """The same, if they gather cell by cell."""
        self.gathers: list[int] = []
        self._used: list[Tensor] = []
        self._chosen: list[Tensor] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator["Watched"]:
        """Note what runs in the body."""
        plain_gather, plain_share, plain_note = dist.all_gather_into_tensor, TokenSplit.share_P, LookAhead.note_choice

        def gather(output: Tensor, mine: Tensor, group: Any = None, **options: Any) -> Any:
            if group is self._group:
                self.gathers.append(len(mine) // self._num_experts)
            return plain_gather(output, mine, group=group, **options)

        def share_P(split: TokenSplit, table: SlotTable, counts_RE: Tensor) -> Tensor:
            self._used.append(counts_RE)
            return plain_share(split, table, counts_RE)

        def note(look_ahead: LookAhead, micro_batch: MicroBatch, routing_map_TE: Tensor) -> None:
            is_split = micro_batch.cells.is_split(micro_batch.index, look_ahead._index)
            if is_split and not look_ahead._is_again(micro_batch):
                self._chosen.append(routing_map_TE.sum(dim=0, dtype=torch.int32))
            plain_note(look_ahead, micro_batch, routing_map_TE)

        with (
            mock.patch.object(dist, "all_gather_into_tensor", gather),
            mock.patch.object(TokenSplit, "share_P", share_P),
            mock.patch.object(LookAhead, "note_choice", note),
        ):
            yield self
        self.gathers.sort()

    def assert_alike(self) -> None:
        """Collective: assert that all ranks of an EP group split by the same counts."""
        everyone = gathered(torch.stack(self._used).cpu())
        assert all(torch.equal(everyone[rank], everyone[self._members[0]]) for rank in self._members), (
            "ranks split alike"
        )

    def is_exact(self) -> bool:
        """Return whether this rank's counts, by which ranks split, are of what its routers chose."""
        both = zip(self._used, self._chosen, strict=True)
        return all(torch.equal(used_RE[self._ep_rank], chosen_E) for used_RE, chosen_E in both)

    def assert_exact(self) -> None:
        """Collective: assert that ranks split alike, by the counts of what routers chose."""
        self.assert_alike()
        assert self.is_exact(), "counts are those chosen"


@dataclass(slots=True)
class Gathers:
    """The all-gathers of counts of one step on this rank."""

    by_cell: int = 0
    ahead: int = 0
    """Those that bring the counts of a micro-batch."""


@contextlib.contextmanager
def noted_gathers(outcomes: Sequence[StepOutcome]) -> Iterator[dict[int, Gathers]]:
    """Yield the gathers of each step that runs in the body.

    Args:
        outcomes: of all passes that have begun, the last one at the end.
    """
    steps: dict[int, Gathers] = {}
    plain_gather, plain_ahead = TokenSplit.gather, TokenSplit.gather_ahead

    def of_step() -> Gathers:
        return steps.setdefault(outcomes[-1].step, Gathers())

    def gather(split: TokenSplit, counts_E: Tensor) -> Tensor:
        of_step().by_cell += 1
        return plain_gather(split, counts_E)

    def gather_ahead(split: TokenSplit, counts_CE: Tensor) -> Any:
        of_step().ahead += 1
        return plain_ahead(split, counts_CE)

    with mock.patch.object(TokenSplit, "gather", gather), mock.patch.object(TokenSplit, "gather_ahead", gather_ahead):
        yield steps
