"""The step's plan as one rank looks it up: what each physical slot holds in each cell, and which weights travel.

M micro-batches of the rank's EP group, L layers, P physical slots, S redundant slots, Q replicas.

Physical slot of rank r = r * (E/R + S) + s: its home slots first, then its redundant slots. In a cell, the replicas on
a rank fill its redundant slots from the first, in order of expert.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from relibra.agent.placement import Placement
from relibra.kernels import EMPTY, REST
from relibra.planning import Cluster, RankPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Weights that travel inside a node for one cell, by rank within the node."""

    send_slots: tuple[tuple[int, ...], ...]
    """Home slots of this rank whose experts each peer gets, in order of expert."""
    receive_slots: tuple[tuple[int, ...], ...]
    """Redundant slots of this rank, counted from 0, that each peer fills, in order of expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """One cell: what `quota_remap` needs, and the transfer before the experts run."""

    slot_expert_P: torch.Tensor
    share_P: torch.Tensor
    transfer: Transfer | None
    """None where no rank of the node holds a replica in this cell; the same on all of them."""


class StepCells:
    """All cells of a step for one rank; immutable, so that a late backward still finds its own plan.

    Args:
        placement: where the experts live during the step.
        cluster: the shape of the EP groups.
        ep_group: index of this rank's EP group.
        ep_rank: this rank within its EP group.
        plan: the agreed plan, whose placement is `placement`; None for no replicas.
        device: where the tables are looked up.
    """

    def __init__(
        self,
        placement: Placement,
        cluster: Cluster,
        *,
        ep_group: int,
        ep_rank: int,
        plan: RankPlan | None,
        device: torch.device,
    ) -> None:
        self._cluster, self._ep_rank, self._placement = cluster, ep_rank, placement
        self.num_micro_batches = plan.num_micro_batches if plan is not None else 0
        slot_expert_LP, share_LP = _home_table(placement, cluster)
        self._home_slot_expert_LP = torch.from_numpy(slot_expert_LP).to(device)
        self._home_share_LP = torch.from_numpy(share_LP).to(device)
        index_Q4, share_Q = np.zeros((0, 4), np.int32), np.zeros(0, np.int32)
        if plan is not None:
            row_Q = plan.replica_index_Q4[:, 0]
            first_row = ep_group * plan.num_micro_batches
            own_Q = (row_Q >= first_row) & (row_Q < first_row + plan.num_micro_batches)
            index_Q4 = plan.replica_index_Q4[own_Q] - np.array([first_row, 0, 0, 0], np.int32)
            share_Q = plan.replica_share_Q[own_Q]
        self.has_replicas = bool(len(index_Q4))
        self._index_Q4 = index_Q4
        self._redundant_slot_Q = redundant_slots(index_Q4)
        num_layers = len(slot_expert_LP)
        self._cell_start = np.searchsorted(
            index_Q4[:, 0] * num_layers + index_Q4[:, 1], np.arange(self.num_micro_batches * num_layers + 1)
        )
        if self.has_replicas:
            shape = (self.num_micro_batches, 1, 1)
            slot_expert_MLP, share_MLP = np.tile(slot_expert_LP, shape), np.tile(share_LP, shape)
            micro_batch_Q, layer_Q, expert_Q, rank_Q = index_Q4.T
            num_home = num_home_slots(placement, cluster)
            slot_Q = rank_Q * (num_home + cluster.redundant_slots) + num_home + self._redundant_slot_Q
            slot_expert_MLP[micro_batch_Q, layer_Q, slot_Q] = expert_Q
            share_MLP[micro_batch_Q, layer_Q, slot_Q] = share_Q
            self._slot_expert_MLP = torch.from_numpy(slot_expert_MLP).to(device)
            self._share_MLP = torch.from_numpy(share_MLP).to(device)

    @property
    def num_replicas(self) -> int:
        """Replicas of this rank's EP group, over all cells."""
        return len(self._index_Q4)

    def table(self, micro_batch: int | None, layer: int) -> SlotTable:
        """Look up one cell; a micro-batch that was not planned, or None, has no replicas."""
        if micro_batch is None or micro_batch >= self.num_micro_batches or not self.has_replicas:
            return SlotTable(
                slot_expert_P=self._home_slot_expert_LP[layer], share_P=self._home_share_LP[layer], transfer=None
            )
        return SlotTable(
            slot_expert_P=self._slot_expert_MLP[micro_batch, layer],
            share_P=self._share_MLP[micro_batch, layer],
            transfer=self._transfer(micro_batch, layer),
        )

    def _transfer(self, micro_batch: int, layer: int) -> Transfer | None:
        cell = micro_batch * len(self._home_share_LP) + layer
        begin, end = self._cell_start[cell], self._cell_start[cell + 1]
        size = self._cluster.gpus_per_node
        first_rank = self._ep_rank // size * size
        sends: list[list[int]] = [[] for _ in range(size)]
        receives: list[list[int]] = [[] for _ in range(size)]
        any_in_node = False
        for (_, _, expert, rank), slot in zip(
            self._index_Q4[begin:end].tolist(), self._redundant_slot_Q[begin:end].tolist(), strict=True
        ):
            if not first_rank <= rank < first_rank + size:
                continue
            any_in_node = True
            home = int(self._placement.home_rank_LE[layer, expert])
            if home == self._ep_rank:
                sends[rank - first_rank].append(int(self._placement.home_slot_LE[layer, expert]))
            if rank == self._ep_rank:
                receives[home - first_rank].append(slot)
        if not any_in_node:
            return None
        return Transfer(send_slots=tuple(map(tuple, sends)), receive_slots=tuple(map(tuple, receives)))


def num_home_slots(placement: Placement, cluster: Cluster) -> int:
    """E/R."""
    return int(placement.home_rank_LE.shape[1]) // cluster.num_ranks


def redundant_slots(index_Q4: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number the replicas of every (row, layer, rank) from 0 in order of expert, int32 `[Q]`.

    `index_Q4` is (row, layer, expert, rank), sorted.
    """
    row_Q, layer_Q, expert_Q, rank_Q = index_Q4.T
    order_Q = np.lexsort((expert_Q, rank_Q, layer_Q, row_Q))
    key_Q3 = index_Q4[order_Q][:, [0, 1, 3]]
    position_Q = np.arange(len(index_Q4))
    starts_Q = np.ones(len(index_Q4), dtype=np.bool_)
    starts_Q[1:] = (key_Q3[1:] != key_Q3[:-1]).any(axis=1)
    first_Q = np.maximum.accumulate(np.where(starts_Q, position_Q, 0))
    slot_Q = np.empty(len(index_Q4), dtype=np.int32)
    slot_Q[order_Q] = position_Q - first_Q
    return slot_Q


def _home_table(placement: Placement, cluster: Cluster) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    num_layers, num_experts = placement.home_rank_LE.shape
    slots_per_rank = num_home_slots(placement, cluster) + cluster.redundant_slots
    slot_expert_LP = np.full((num_layers, cluster.num_ranks * slots_per_rank), EMPTY, dtype=np.int32)
    share_LP = np.zeros_like(slot_expert_LP)
    slot_LE = placement.home_rank_LE * slots_per_rank + placement.home_slot_LE
    layer_L1 = np.arange(num_layers)[:, None]
    slot_expert_LP[layer_L1, slot_LE] = np.arange(num_experts)
    share_LP[layer_L1, slot_LE] = REST
    return slot_expert_LP, share_LP
