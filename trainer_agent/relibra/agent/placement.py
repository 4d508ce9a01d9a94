"""Where every expert lives: its home rank and its home slot there.

L layers, E experts, R EP ranks. A slot index counts the home slots of one rank, 0 to E/R - 1.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Model


class Move(NamedTuple):
    """The move of one expert of one layer to another slot, on another rank or on the same one."""

    layer: int
    expert: int
    source_rank: int
    source_slot: int
    destination_rank: int
    destination_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The home rank and home slot of every expert, int32 `[L, E]`. Every (rank, slot) of a layer holds one expert."""

    home_rank_LE: NDArray[np.int32]
    home_slot_LE: NDArray[np.int32]

    @classmethod
    def identity(cls, model: Model, cluster: Cluster) -> "Placement":
        """Return the placement of plain expert parallelism."""
        slot_E = np.arange(model.num_experts, dtype=np.int32) % np.int32(cluster.experts_per_rank(model))
        return cls(
            home_rank_LE=cluster.identity_placement(model),
            home_slot_LE=np.tile(slot_E, (model.num_layers, 1)),
        )

    def with_homes(self, home_rank_LE: NDArray[np.int32]) -> "Placement":
        """Return the placement with new home ranks, which must have passed `check_placement`.

        An expert that stays on its rank keeps its slot. Arriving experts fill the slots that became free, in order of
        expert and slot.
        """
        num_layers, num_experts = home_rank_LE.shape
        num_ranks = int(home_rank_LE.max()) + 1
        stays_LE = home_rank_LE == self.home_rank_LE
        taken_LRS = np.zeros((num_layers, num_ranks, num_experts // num_ranks), dtype=np.bool_)
        layer_n, expert_n = np.nonzero(stays_LE)
        taken_LRS[layer_n, home_rank_LE[layer_n, expert_n], self.home_slot_LE[layer_n, expert_n]] = True
        # Every (layer, rank) has as many arrivals as free slots. Sorted the same way, they pair up one to one.
        layer_n, expert_n = np.nonzero(~stays_LE)
        order_n = np.argsort(layer_n * num_ranks + home_rank_LE[layer_n, expert_n], kind="stable")
        home_slot_LE = self.home_slot_LE.copy()
        home_slot_LE[layer_n[order_n], expert_n[order_n]] = np.nonzero(~taken_LRS)[2]
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
        return [Move(*map(int, row)) for row in zip(*columns, strict=True)]

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
