"""Where every expert lives: its home rank and its home slot there.

L layers, E experts, R EP ranks. A slot index counts the home slots of one rank, 0 to E/R - 1.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relibra.planning.cycles import short_cycles
from relibra.planning.job import Cluster, Model


class Part(NamedTuple):
    """The pieces `start` to `stop - 1` of an expert that is cut into `of` pieces."""

    start: int
    stop: int
    of: int


WHOLE = Part(0, 1, 1)


class Move(NamedTuple):
    """The move of an expert of one layer, or of a part of it, to another slot, on another rank or on the same one."""

    layer: int
    expert: int
    source_rank: int
    source_slot: int
    destination_rank: int
    destination_slot: int
    part: Part = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The home rank and home slot of every expert, int32 `[L, E]`. Every (rank, slot) of a layer holds one expert."""

    home_rank_LE: NDArray[np.int32]
    home_slot_LE: NDArray[np.int32]

    @classmethod
    def identity(cls, model: Model, cluster: Cluster) -> "Placement":
        """Return the placement of plain expert parallelism."""
        return cls.of_homes(cluster.identity_placement(model))

    @classmethod
    def of_homes(cls, home_rank_LE: NDArray[np.int32]) -> "Placement":
        """Return the placement with these home ranks whose slots have experts in rising order."""
        num_layers, num_experts = home_rank_LE.shape
        order_LE = np.argsort(home_rank_LE, axis=1, kind="stable")
        slot_E = np.arange(num_experts, dtype=np.int32) % np.int32(num_experts // (int(home_rank_LE.max()) + 1))
        home_slot_LE = np.empty_like(home_rank_LE)
        np.put_along_axis(home_slot_LE, order_LE, np.tile(slot_E, (num_layers, 1)), axis=1)
        return cls(home_rank_LE=home_rank_LE, home_slot_LE=home_slot_LE)

    def with_homes(self, home_rank_LE: NDArray[np.int32]) -> "Placement":
        """Return the placement with new home ranks, which must have passed `check_placement`.

        An expert that stays on its rank keeps its slot. Experts that leave do so in short cycles, and each takes the
        slot of the next one. Which experts form a cycle depends on home ranks alone.
        """
        home_slot_LE = self.home_slot_LE.copy()
        for layer in np.flatnonzero((home_rank_LE != self.home_rank_LE).any(axis=1)).tolist():
            for cycle in short_cycles(self.home_rank_LE[layer], home_rank_LE[layer]):
                home_slot_LE[layer, cycle] = self.home_slot_LE[layer, np.roll(cycle, -1)]
        return Placement(home_rank_LE=home_rank_LE.astype(np.int32), home_slot_LE=home_slot_LE)

    def moves_to(self, target: "Placement") -> list[Move]:
        """List every expert whose rank or slot differs in `target`, sorted by layer and expert."""
        differs_LE = (self.home_rank_LE != target.home_rank_LE) | (self.home_slot_LE != target.home_slot_LE)
        layer_n, expert_n = np.nonzero(differs_LE)
        columns = (
            layer_n,
            expert_n,
            self.home_rank_LE[differs_LE],
            self.home_slot_LE[differs_LE],
            target.home_rank_LE[differs_LE],
            target.home_slot_LE[differs_LE],
        )
        return [Move(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    @property
    def expert_of_place_LE(self) -> NDArray[np.int32]:
        """The logical expert at every place (rank * E/R + slot), int32 `[L, E]`; every layer is a permutation."""
        return np.lexsort((self.home_slot_LE, self.home_rank_LE)).astype(np.int32)

    @property
    def fingerprint(self) -> str:
        """A text that is equal where all experts of the job are at the same places, and else differs."""
        return hashlib.sha256(self.expert_of_place_LE.tobytes()).hexdigest()[:32]

    def expert_of_slot(self, rank: int) -> NDArray[np.int32]:
        """Return the logical expert in every home slot of `rank`, int32 `[L, E/R]`."""
        num_slots = int(self.home_slot_LE.max()) + 1
        return self.expert_of_place_LE[:, rank * num_slots : (rank + 1) * num_slots]
