"""The step's plan in the form in which one rank looks it up: the expert in each physical slot, and the copies to make.

M micro-batches of the rank's EP group, L layers, E experts, P physical slots, S redundant slots, Y replicas
(y of one micro-batch).

Slot s of rank r has the physical number r * (E/R + S) + s; home slots come first, then redundant slots. In a cell, the
replicas on a rank fill its redundant slots from the first on, in order of expert. A cell without replicas has home
slots only, so that it costs no more than plain expert parallelism.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.transport import Copy
from relibra.kernels import EMPTY, REST
from relibra.planning import Cluster, Replicas, StepPlan
from relibra.planning.places import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReplicas:
    """The replicas of one cell in all nodes of the EP group, in order of expert and then rank."""

    home_E: NDArray[np.int32]
    expert_Y: NDArray[np.int32]
    rank_Y: NDArray[np.int32]
    slot_Y: NDArray[np.int64]
    """The physical slot of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """The input of `quota_remap` for one cell, before it is known which tokens come."""

    slot_expert_P: Tensor
    """The logical expert in each slot, int32; `EMPTY` for none."""
    share_P: Tensor | None
    """`REST` for all slots, int32, in a cell without replicas. None where it depends on the tokens that come."""
    replicas: CellReplicas | None = None
    """None if the cell has no replicas."""


class StepCells:
    """All cells of a step for one rank. The object is immutable, so that a late backward still finds its own plan.

    Args:
        placement: where the experts live during the step.
        cluster: the shape of the EP groups.
        ep_group: index of this rank's EP group.
        ep_rank: index of this rank within its EP group.
        plan: the agreed plan, whose placement is `placement`; None for no replicas.
        device: where the tables live.
    """

    def __init__(
        self,
        placement: Placement,
        cluster: Cluster,
        *,
        ep_group: int,
        ep_rank: int,
        plan: StepPlan | None,
        device: torch.device,
    ) -> None:
        self._placement, self._cluster, self._ep_rank, self.device = placement, cluster, ep_rank, device
        self.num_micro_batches = plan.num_micro_batches if plan is not None else 0
        self._home_LP = _home_table(placement, cluster, num_redundant=0)
        num_layers, self.num_experts = num_layers, num_experts = self._home_LP.shape
        self._home_on_device = torch.from_numpy(self._home_LP).to(device)
        self._rest_E = torch.full((num_experts,), REST, dtype=torch.int32, device=device)
        self._is_identity_L: list[bool] = (self._home_LP == np.arange(num_experts)).all(axis=1).tolist()
        num_cells = self.num_micro_batches * num_layers
        count_ML = plan.replicas.count_ML if plan is not None else np.zeros((0, num_layers), np.int32)
        shape = (cluster.num_ep_groups, self.num_micro_batches, num_layers)
        self._is_anywhere_ML: NDArray[np.bool_] = np.logical_or.reduce(count_ML.reshape(shape) > 0)
        start_C = np.concatenate([[0], count_ML.cumsum(dtype=np.int64)])
        start_C = start_C[ep_group * num_cells : (ep_group + 1) * num_cells + 1]
        self._start_C: list[int] = (start_C - start_C[0]).tolist()
        """Where the replicas of each cell begin, and where those of the last one end."""
        self.num_replicas = self._start_C[-1]
        """The number of replicas of this rank's EP group, over all cells."""
        self.has_replicas = bool(self.num_replicas)
        self._copies: dict[tuple[int, int], tuple[Copy, ...]] = {}
        self._replicated: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._tables: dict[tuple[int, int], SlotTable] = {}
        if plan is not None and self.has_replicas:
            own = slice(start_C[0], start_C[-1])
            self._expert_Y = plan.replicas.expert_Y[own].astype(np.int32, copy=False)
            self._rank_Y = plan.replicas.rank_Y[own].astype(np.int32, copy=False)
            home_LP = _home_table(placement, cluster, num_redundant=cluster.redundant_slots)
            replicas = Replicas(
                count_ML=count_ML.reshape(shape)[ep_group], expert_Y=self._expert_Y, rank_Y=self._rank_Y
            )
            self._slot_expert_MLP, self._place_Y = fill_redundant_slots(home_LP, replicas, cluster)
            self._slots_on_device = torch.from_numpy(self._slot_expert_MLP).to(device)
            self._home_share_P = torch.zeros(home_LP.shape[1], dtype=torch.int32, device=device)
            self._home_share_P.view(cluster.num_ranks, -1)[:, : num_home_slots(placement, cluster)] = REST

    def table(self, micro_batch: int | None, layer: int) -> SlotTable | None:
        """Return the table of a cell, or None if all experts are at their identity places and routing needs no remap.

        None stands for no micro-batch, which has no replicas. The table is equal on all ranks of the EP group.
        """
        if micro_batch is not None and (rows := self._replicas_of(micro_batch, layer)) is not None:
            if (micro_batch, layer) not in self._tables:
                self._tables[micro_batch, layer] = self._table_of(micro_batch, layer, rows)
            return self._tables[micro_batch, layer]
        if self._is_identity_L[layer]:
            return None
        return SlotTable(slot_expert_P=self._home_on_device[layer], share_P=self._rest_E)

    def all_slots(self, micro_batch: int, layer: int) -> tuple[Tensor, Tensor]:
        """Return the expert in each slot of a cell, and the shares that a cell without replicas has, both `[P]`.

        P counts the S slots of every rank. Only a step with replicas has these tensors.
        """
        return self._slots_on_device[micro_batch % self.num_micro_batches, layer], self._home_share_P

    def slot_experts(self, micro_batch: int, layer: int) -> NDArray[np.int32]:
        """Return the logical expert in each slot of this rank in a cell, `EMPTY` for none."""
        slot_expert_P = self._home_LP[layer]
        if self._replicas_of(micro_batch, layer) is not None:
            slot_expert_P = self._slot_expert_MLP[micro_batch % self.num_micro_batches, layer]
        of_rank: NDArray[np.int32] = slot_expert_P.reshape(self._cluster.num_ranks, -1)[self._ep_rank]
        return of_rank

    def layers_with_replicas(self, micro_batch: int, layers: Sequence[int]) -> list[int]:
        """Return the layers of `layers` that have replicas in this node."""
        key = micro_batch, tuple(layers)
        if key not in self._replicated:
            self._replicated[key] = [layer for layer in layers if self.copies(micro_batch, layer)]
        return self._replicated[key]

    def is_split(self, micro_batch: int, layer: int) -> bool:
        """Return whether the EP group has replicas in a cell, so that all its ranks split their tokens."""
        return self._replicas_of(micro_batch, layer) is not None

    def is_replicated_anywhere(self, micro_batch: int, layer: int) -> bool:
        """Return whether any node of any EP group has replicas of this layer in micro-batch `micro_batch` of its own.

        The ranks that hold the same experts run micro-batches of the same index at the same time.
        """
        planned = self._row_of(micro_batch)
        return planned is not None and bool(self._is_anywhere_ML[planned, layer])

    def copies(self, micro_batch: int, layer: int) -> tuple[Copy, ...]:
        """Return all replicas on ranks of this node, in order of expert and then rank, equal on all these ranks."""
        cell = micro_batch, layer
        if cell not in self._copies:
            rows = self._replicas_of(micro_batch, layer)
            self._copies[cell] = () if rows is None else self._copies_in(layer, rows)
        return self._copies[cell]

    def _table_of(self, micro_batch: int, layer: int, rows: slice) -> SlotTable:
        return SlotTable(
            slot_expert_P=self._slots_on_device[micro_batch % self.num_micro_batches, layer],
            share_P=None,
            replicas=CellReplicas(
                home_E=self._placement.home_rank_LE[layer],
                expert_Y=self._expert_Y[rows],
                rank_Y=self._rank_Y[rows],
                slot_Y=self._place_Y[rows] - np.int64(layer * self._slot_expert_MLP.shape[2]),
            ),
        )

    def _copies_in(self, layer: int, rows: slice) -> tuple[Copy, ...]:
        expert_Y, rank_Y = self._expert_Y[rows], self._rank_Y[rows]
        first_rank = self._ep_rank // self._cluster.gpus_per_node * self._cluster.gpus_per_node
        num_slots = self._slot_expert_MLP.shape[2] // self._cluster.num_ranks
        fields = (
            self._placement.home_rank_LE[layer, expert_Y] - first_rank,
            self._placement.home_slot_LE[layer, expert_Y],
            rank_Y - first_rank,
            self._place_Y[rows] % num_slots - num_home_slots(self._placement, self._cluster),
        )
        in_node_Y = (rank_Y >= first_rank) & (rank_Y < first_rank + self._cluster.gpus_per_node)
        return tuple(Copy(*of_copy) for of_copy in np.stack(fields, axis=1)[in_node_Y].tolist())

    def _row_of(self, micro_batch: int) -> int | None:
        """Return the micro-batch of the plan whose copies a micro-batch uses; None if the plan has none.

        Where more run than were planned, as in a step that is planned from history or that keeps the last plan, they
        use those of the plan in turn: tokens are split by what comes, so the copies fit more or less, and never wrong.
        """
        return micro_batch % self.num_micro_batches if self.num_micro_batches else None

    def _replicas_of(self, micro_batch: int, layer: int) -> slice | None:
        """Return where the replicas of a cell are; None if it has none."""
        planned = self._row_of(micro_batch)
        if planned is None:
            return None
        cell = planned * len(self._home_LP) + layer
        rows = slice(self._start_C[cell], self._start_C[cell + 1])
        return rows if rows.start < rows.stop else None


def num_home_slots(placement: Placement, cluster: Cluster) -> int:
    """Return the number of home slots of a rank, E/R."""
    return int(placement.home_rank_LE.shape[1]) // cluster.num_ranks


def fill_redundant_slots(
    home_LP: NDArray[np.int32], replicas: Replicas, cluster: Cluster
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the expert in every slot of all cells, `[M, L, P]`, and the place of every replica in `[L, P]`, `[Y]`.

    Args:
        home_LP: the experts in home slots; redundant slots are empty.
        replicas: those of one EP group.
        cluster: the ranks and their slots.
    """
    num_micro_batches, num_layers = replicas.count_ML.shape
    slot_expert_MX = np.empty((num_micro_batches, home_LP.size), dtype=np.int32)
    place_Y = np.empty(len(replicas.expert_Y), dtype=np.int32)
    num_slots = home_LP.shape[1] // cluster.num_ranks
    first_L = np.arange(num_layers) * home_LP.shape[1] + num_slots - cluster.redundant_slots
    end = 0
    # One micro-batch at a time, so that its arrays stay in the processor's cache.
    for slot_expert_X, count_L in zip(slot_expert_MX, replicas.count_ML, strict=True):
        begin, end = end, end + int(count_L.sum(dtype=np.int64))
        slot_expert_X[:] = home_LP.ravel()
        expert_y = replicas.expert_Y[begin:end]
        place_y = np.repeat(first_L, count_L) + np.multiply(replicas.rank_Y[begin:end], num_slots, dtype=np.int64)
        for _ in range(cluster.redundant_slots - 1):  # a sort takes longer
            slot_expert_X[place_y[::-1]] = expert_y[::-1]  # of several in one slot, the last one that is written stays
            place_y += slot_expert_X[place_y] != expert_y
        slot_expert_X[place_y] = expert_y
        place_Y[begin:end] = place_y
    return slot_expert_MX.reshape(num_micro_batches, *home_LP.shape), place_Y


def _home_table(placement: Placement, cluster: Cluster, *, num_redundant: int) -> NDArray[np.int32]:
    num_layers, num_experts = placement.home_rank_LE.shape
    slots_per_rank = num_home_slots(placement, cluster) + num_redundant
    slot_expert_LP = np.full((num_layers, cluster.num_ranks * slots_per_rank), EMPTY, dtype=np.int32)
    slot_LE = placement.home_rank_LE * slots_per_rank + placement.home_slot_LE
    slot_expert_LP[np.arange(num_layers)[:, None], slot_LE] = np.arange(num_experts)
    return slot_expert_LP
