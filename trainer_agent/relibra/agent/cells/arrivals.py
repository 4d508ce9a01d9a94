"""The places in which gradients arrive at their homes, and the turns in which they come, so that memory is bounded.

An expert may have a replica on every other rank of the node, and the gradients of all of them arrive at its home: in
fp32 and with the experts of DeepSeek-V3, up to 2.5 GB on one rank. So a home has places for some replicas, which it
uses again. The replicas of a turn arrive at the same time.

All ranks of the node compute the same turns and places, without messages. So a sender knows the place of its gradients
at the home, if the transport needs that.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from relibra.agent.experts import Experts, require_gradients
from relibra.agent.transport import Copy, ExpertTransport
from relibra.kernels.packed import packed_size_bytes, packed_views

ARRIVING_BYTES = 1 << 29
"""The memory of a rank for gradients that arrive from the replicas of a cell; two replicas have room in any case. What
does not fit travels when the home adds up what came before, and nothing hides that time."""
_LEAST_TURNS = 2
"""While the home adds up what came in one turn, the next one arrives."""

Turn = dict[int, int]
"""The places of the replicas that arrive at the same time, each at its own home, by their indices in the cell."""


def places_of(gradient_bytes: int, most: int, arriving_bytes: int = ARRIVING_BYTES) -> tuple[int, int]:
    """Return the places of a rank, and the most replicas that arrive at it in a turn.

    Args:
        gradient_bytes: the size of the gradient of a replica.
        most: the most replicas of this rank's experts in a cell.
        arriving_bytes: as `ARRIVING_BYTES`.
    """
    num_places = max(_LEAST_TURNS, arriving_bytes // max(gradient_bytes, 1))
    if most <= num_places:
        return most, most
    per_turn = num_places // _LEAST_TURNS
    return num_places // per_turn * per_turn, per_turn


def turns_of(copies: Sequence[Copy], num_places: int, per_turn: int) -> list[Turn]:
    """Return the turns of a cell in order. Replicas of one expert arrive in ascending order of rank.

    Args:
        copies: the replicas of the cell in one node, in order of expert and then rank.
        num_places: of a rank, which it uses one after the other, again and again.
        per_turn: the most replicas that arrive at one home in a turn.
    """
    turns, num_at = list[Turn](), Counter[int]()
    for i, copy in enumerate(copies):
        number = num_at[copy.source_rank]
        num_at[copy.source_rank] += 1
        if number // per_turn == len(turns):
            turns.append({})
        turns[number // per_turn][i] = number % num_places
    return turns


class Arrivals:
    """The places for the arriving gradients of one cell at a time.

    Memory of the transport stays as it is, and construction is collective over the ranks of the node. Otherwise a rank
    allocates the places that its arrivals need, and keeps them for the cells that follow until `release`.

    Args:
        transport: between the ranks of the node.
        experts: the experts of this rank's layers.
        num_slots: redundant slots of a rank.
        dtype: the dtype of all gradients; None if each gradient has the dtype of its parameter.
        device: where the experts are.
        arriving_bytes: as `ARRIVING_BYTES`.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        experts: Iterable[Experts],
        num_slots: int,
        dtype: torch.dtype | None,
        device: torch.device,
        arriving_bytes: int = ARRIVING_BYTES,
    ) -> None:
        self._rank, self._needs_places, self._dtype, self._device = (
            transport.rank,
            transport.needs_places,
            dtype,
            device,
        )
        self.gradient_bytes = max((packed_size_bytes(self._like(of)) for of in experts), default=0)
        """The size of the gradient of a replica."""
        most = num_slots * (transport.num_ranks - 1)
        self.num_places, self._per_turn = places_of(self.gradient_bytes, most, arriving_bytes)
        self.num_turns = self.num_places // max(self._per_turn, 1)
        """The most turns that may be under way."""
        self._memory = list[Tensor]()
        self._views = dict[tuple[int, Experts], Sequence[Tensor]]()
        if transport.needs_places:
            memory = transport.memory(self.num_places * self.gradient_bytes, device)
            self._memory += memory.view(self.num_places, self.gradient_bytes)

    @property
    def size_bytes(self) -> int:
        """The size of the memory."""
        return sum(place.nbytes for place in self._memory)

    def turns(self, copies: Sequence[Copy], experts: Experts) -> list[dict[int, Sequence[Tensor]]]:
        """Return the turns of a cell, with the tensors for the gradient of each replica, for those that train.

        With places for the replicas of other homes, too, if the transport needs them.
        """
        return [
            {
                i: self._place(place, experts) if self._needs_places or copies[i].source_rank == self._rank else ()
                for i, place in turn.items()
            }
            for turn in turns_of(copies, self.num_places, self._per_turn)
        ]

    def release(self) -> None:
        """Free the memory, unless it is the transport's, while nothing is under way."""
        self._views.clear()
        if not self._needs_places:
            self._memory.clear()

    def _place(self, place: int, experts: Experts) -> Sequence[Tensor]:
        if (place, experts) not in self._views:
            while place >= len(self._memory):
                self._memory.append(torch.empty(self.gradient_bytes, dtype=torch.uint8, device=self._device))
            self._views[place, experts] = packed_views(self._memory[place], self._like(experts))
        return self._views[place, experts]

    def _like(self, experts: Experts) -> list[Tensor]:
        one = require_gradients(experts.parameters[0])
        return [torch.empty(each.shape, dtype=self._dtype or each.dtype, device="meta") for each in one]
