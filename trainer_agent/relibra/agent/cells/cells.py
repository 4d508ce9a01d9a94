"""The step's plan in the form in which one rank looks it up: the expert in each physical slot, and the copies to make.

M micro-batches of the rank's EP group, L layers, P physical slots, S redundant slots, Q replicas.

Slot s of rank r has the physical number r * (E/R + S) + s; home slots come first, then redundant slots. In a cell, the
replicas on a rank fill its redundant slots from the first on, in order of expert. A cell without replicas has home
slots only, so that it costs no more than plain expert parallelism.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from relibra.agent.placement import Placement
from relibra.agent.transport import Copy
from relibra.kernels import EMPTY, REST
from relibra.planning import Cluster, RankPlan
from relibra.planning.plan import Basis
from relibra.planning.shares import begins, tokens_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """The input of `quota_remap` for one cell."""

    slot_expert_P: torch.Tensor
    """The logical expert in each slot, int32; `EMPTY` for none."""
    share_P: torch.Tensor
    """This rank's share of each slot, int32: tokens, or a fraction in a forecast plan. `REST` for home slots."""

    def tokens(self, routing_map_TE: torch.Tensor) -> torch.Tensor:
        """Return the most tokens of this rank that each slot takes, `REST` for a home slot."""
        return self.share_P


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastTable(SlotTable):
    """The table of one cell of a forecast plan, whose shares are fractions of the tokens that arrive."""

    begin_P: torch.Tensor
    """The sum of the fractions of the slots before this one that hold the same expert."""
    ep_rank: int
    num_ranks: int

    def tokens(self, routing_map_TE: torch.Tensor) -> torch.Tensor:
        """Return the tokens of each slot as `SlotTable.tokens` does, without reading device memory on the host."""
        tokens_P = routing_map_TE.sum(dim=0).index_select(0, self.slot_expert_P.clamp(min=0))
        taken_P = tokens_of(tokens_P, self.begin_P, self.share_P, self.ep_rank, self.num_ranks)
        return taken_P.masked_fill(self.share_P == REST, REST)


class StepCells:
    """All cells of a step for one rank. The object is immutable, so that a late backward still finds its own plan.

    Args:
        placement: where the experts live during the step.
        cluster: the shape of the EP groups.
        ep_group: index of this rank's EP group.
        ep_rank: index of this rank within its EP group.
        etp_rank: index of this rank among those that hold the other parts of the same experts.
        num_etp_ranks: the number of parts. A plan counts the tokens of all of these ranks as those of one, so each of
            them takes its part of a share.
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
        etp_rank: int = 0,
        num_etp_ranks: int = 1,
        plan: RankPlan | None,
        device: torch.device,
    ) -> None:
        self._cluster, self._ep_rank = cluster, ep_rank
        self.num_micro_batches = plan.num_micro_batches if plan is not None else 0
        home_LE, rest_LE = _home_table(placement, cluster, num_redundant=0)
        self._home_LE, self._rest_LE = (torch.from_numpy(each).to(device) for each in (home_LE, rest_LE))
        self._is_identity_L: list[bool] = (home_LE == np.arange(home_LE.shape[1])).all(axis=1).tolist()
        self.planned_MLB: NDArray[np.int64] | None = None
        """The token copies that the plan expects from the ranks that it counts as this one, by bucket of experts; None
        if it does not say."""
        index_Q4, share_Q = np.zeros((0, 4), np.int32), np.zeros(0, np.int32)
        self._is_anywhere_ML = np.zeros((self.num_micro_batches, len(home_LE)), dtype=np.bool_)
        if plan is not None:
            row_Q = plan.replica_index_Q4[:, 0]
            self._is_anywhere_ML[row_Q % max(1, plan.num_micro_batches), plan.replica_index_Q4[:, 1]] = True
            first_row = ep_group * plan.num_micro_batches
            own_Q = (row_Q >= first_row) & (row_Q < first_row + plan.num_micro_batches)
            index_Q4 = plan.replica_index_Q4[own_Q] - np.array([first_row, 0, 0, 0], np.int32)
            share_Q = plan.replica_share_Q[own_Q]
            if plan.basis is Basis.REPLAY:
                share_Q = (share_Q + num_etp_ranks - 1 - etp_rank) // num_etp_ranks
            if plan.source_load_MLB is not None and plan.basis is Basis.REPLAY:
                self.planned_MLB = plan.source_load_MLB[first_row : first_row + plan.num_micro_batches]
        self.has_replicas = bool(len(index_Q4))
        self._is_forecast = plan is not None and plan.basis is not Basis.REPLAY
        self._num_replicas = len(index_Q4)
        self._redundant_slot_Q = redundant_slots(index_Q4)
        num_layers, (_, layer_Q, expert_Q, rank_Q) = len(home_LE), index_Q4.T
        first_rank = ep_rank // cluster.gpus_per_node * cluster.gpus_per_node
        home_rank_Q, home_slot_Q = (
            each_LE[layer_Q, expert_Q] for each_LE in (placement.home_rank_LE, placement.home_slot_LE)
        )
        self._copy_Q4: list[list[int]] = np.stack(
            [home_rank_Q - first_rank, home_slot_Q, rank_Q - first_rank, self._redundant_slot_Q], axis=1
        ).tolist()
        """The fields of each replica's `Copy`, as seen from this node."""
        self._cell_start: list[int] = np.searchsorted(
            index_Q4[:, 0] * num_layers + index_Q4[:, 1], np.arange(self.num_micro_batches * num_layers + 1)
        ).tolist()
        self._copies: dict[tuple[int, int], tuple[Copy, ...]] = {}
        self._replicated: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        self._tables: dict[int, Sequence[SlotTable]] = {}
        if self.has_replicas:
            slot_expert_LP, share_LP = _home_table(placement, cluster, num_redundant=cluster.redundant_slots)
            shape = (self.num_micro_batches, 1, 1)
            slot_expert_MLP, share_MLP = np.tile(slot_expert_LP, shape), np.tile(share_LP, shape)
            micro_batch_Q, layer_Q, expert_Q, rank_Q = index_Q4.T
            num_home = num_home_slots(placement, cluster)
            slot_Q = rank_Q * (num_home + cluster.redundant_slots) + num_home + self._redundant_slot_Q
            slot_expert_MLP[micro_batch_Q, layer_Q, slot_Q] = expert_Q
            share_MLP[micro_batch_Q, layer_Q, slot_Q] = share_Q
            self._slot_expert_MLP = torch.from_numpy(slot_expert_MLP).to(device)
            self._share_MLP = torch.from_numpy(share_MLP).to(device)
            if self._is_forecast:
                begin_MLP = np.zeros(share_MLP.shape, dtype=np.int64)
                begin_MLP[micro_batch_Q, layer_Q, slot_Q] = begins(index_Q4, share_Q)
                self._begin_MLP = torch.from_numpy(begin_MLP).to(device)

    @property
    def num_replicas(self) -> int:
        """The number of replicas of this rank's EP group, over all cells."""
        return self._num_replicas

    def table(self, micro_batch: int | None, layer: int) -> SlotTable | None:
        """Return the table of a cell, or None if all experts are at their identity places and routing needs no remap.

        A micro-batch that was not planned, or None, has no replicas. The tables of the ranks of an EP group differ only
        in their shares.
        """
        if micro_batch is not None and self._replicas_of(micro_batch, layer):
            if micro_batch not in self._tables:
                self._tables[micro_batch] = self._tables_of(micro_batch)
            return self._tables[micro_batch][layer]
        if self._is_identity_L[layer]:
            return None
        return SlotTable(slot_expert_P=self._home_LE[layer], share_P=self._rest_LE[layer])

    def replicated(self, micro_batch: int, layers: Sequence[int]) -> list[int]:
        """Return the layers of `layers` that have replicas in this node."""
        key = micro_batch, tuple(layers)
        if key not in self._replicated:
            self._replicated[key] = [layer for layer in layers if self.copies(micro_batch, layer)]
        return self._replicated[key]

    def is_replicated_anywhere(self, micro_batch: int, layer: int) -> bool:
        """Return whether any node of any EP group has replicas of this layer in micro-batch `micro_batch` of its own.

        The ranks that hold the same experts run micro-batches of the same index at the same time.
        """
        return micro_batch < self.num_micro_batches and bool(self._is_anywhere_ML[micro_batch, layer])

    def copies(self, micro_batch: int, layer: int) -> tuple[Copy, ...]:
        """Return all replicas on ranks of this node, in order of expert and then rank, equal on all these ranks."""
        cell = micro_batch, layer
        if cell not in self._copies:
            self._copies[cell] = self._copies_in(self._replicas_of(micro_batch, layer))
        return self._copies[cell]

    def _tables_of(self, micro_batch: int) -> list[SlotTable]:
        """Return the tables of all layers, with as few operations of torch as possible."""
        rows = zip(self._slot_expert_MLP[micro_batch].unbind(), self._share_MLP[micro_batch].unbind(), strict=True)
        if not self._is_forecast:
            return [SlotTable(slot_expert_P=slot_expert_P, share_P=share_P) for slot_expert_P, share_P in rows]
        return [
            ForecastTable(
                slot_expert_P=slot_expert_P,
                share_P=share_P,
                begin_P=begin_P,
                ep_rank=self._ep_rank,
                num_ranks=self._cluster.num_ranks,
            )
            for (slot_expert_P, share_P), begin_P in zip(rows, self._begin_MLP[micro_batch].unbind(), strict=True)
        ]

    def _replicas_of(self, micro_batch: int, layer: int) -> range:
        """Return the rows of a cell in `_copy_Q4`."""
        if micro_batch >= self.num_micro_batches:
            return range(0)
        cell = micro_batch * len(self._home_LE) + layer
        return range(self._cell_start[cell], self._cell_start[cell + 1])

    def _copies_in(self, rows: range) -> tuple[Copy, ...]:
        in_node = range(self._cluster.gpus_per_node)
        return tuple(Copy(*each) for each in self._copy_Q4[rows.start : rows.stop] if each[2] in in_node)


def num_home_slots(placement: Placement, cluster: Cluster) -> int:
    """Return the number of home slots of a rank, E/R."""
    return int(placement.home_rank_LE.shape[1]) // cluster.num_ranks


def redundant_slots(index_Q4: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the redundant slot of each replica, int32 `[Q]`: the replicas of a (row, layer, rank) count up from 0.

    Args:
        index_Q4: (row, layer, expert, rank) of each replica, sorted.
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


def _home_table(
    placement: Placement, cluster: Cluster, *, num_redundant: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    num_layers, num_experts = placement.home_rank_LE.shape
    slots_per_rank = num_home_slots(placement, cluster) + num_redundant
    slot_expert_LP = np.full((num_layers, cluster.num_ranks * slots_per_rank), EMPTY, dtype=np.int32)
    share_LP = np.zeros_like(slot_expert_LP)
    slot_LE = placement.home_rank_LE * slots_per_rank + placement.home_slot_LE
    layer_L1 = np.arange(num_layers)[:, None]
    slot_expert_LP[layer_L1, slot_LE] = np.arange(num_experts)
    share_LP[layer_L1, slot_LE] = REST
    return slot_expert_LP, share_LP
