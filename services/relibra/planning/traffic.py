"""The token copies that travel between nodes, and what they cost: the part of a cell's time that dispatch decides.

The time of a cell, in tokens of its slowest rank, is

    tokens of the slowest rank + price x the most copies that one adapter sends or receives

Copies leave a node through all its adapters: its ranks are sources of equally many tokens. In an all-to-all every copy
enters the adapter of the rank that computes it. Dispatchers that send a token once to a node share its adapters in both
directions. Both directions work at the same time, so the busier one counts. Links inside a node are several times as
fast as adapters, and are not counted.

Where the cost model does not say how large a token is, and where there is only one node, dispatch is free and only
tokens of slowest ranks count.

M rows, L layers, E experts, N nodes, S sequences, P groups (nodes or ranks), X experts of a node.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster, PlanParams
from relibra.planning.load import StepLoad
from relibra.planning.traffic_size import MAX_KEPT_BYTES, dispatch_costs_time

UNIT_BITS = 10
"""Prices are whole multiples of 2**-10 tokens, so that they are the same on every host (S8). Compiled code has this
number built in, and does not notice if it changes."""

MAX_PRICE = 1 << 24
"""No copy counts for more than 2**14 tokens where plans are chosen: dispatch then decides alone."""

_MAX_CELL = 1 << 62
"""The copies of a cell times the price stay below this, so that they fit 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """The traffic of experts that are split into equally large groups, each on one node."""

    local_NEM: NDArray[np.int64]
    """The copies of every expert that do not cross if it lives on a node, by node; contiguous."""
    node_P: NDArray[np.int64]
    """The node of every group, as an index of `local_NEM`."""
    out_PM: NDArray[np.int64]
    """The copies that leave a group's adapters if no expert of the group is among those they are for; 0 where groups
    share the adapters that they leave by."""
    price: int
    """The price of a copy at the busiest group, in units of 2**-10 tokens, above 0."""

    def busiest_M(self, load_ME: NDArray[np.integer], group_E: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the most copies that enter or leave one group in every row."""
        num_groups = len(self.node_P)
        load_PM = _sum_by_group(load_ME.T, group_E, num_groups)
        local_EM = self.local_NEM[self.node_P[group_E], np.arange(len(group_E))]
        copies_PM = np.maximum(load_PM, self.out_PM) - _sum_by_group(local_EM, group_E, num_groups)
        busiest_M: NDArray[np.int64] = copies_PM.max(axis=0)
        return busiest_M

    def tokens(self, copies: int) -> int:
        """Return what so many copies of the busiest groups cost, in tokens."""
        return copies * self.price >> UNIT_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraffic:
    """The sources of one layer's token copies, and the price of a copy that enters or leaves an adapter."""

    local_NEM: NDArray[np.int64]
    """The token copies that the sequences of every node have for every expert; contiguous."""
    price: int
    """The price of a copy at the busiest adapter, in units of 2**-10 tokens, above 0."""
    by_rank: bool
    """Whether each rank receives its own copies. Otherwise the ranks of a node share what enters it."""

    def of_nodes(self) -> GroupTraffic:
        """Return the traffic where groups are nodes."""
        nodes_N = np.arange(len(self.local_NEM))
        return self._of_groups(self.local_NEM, nodes_N, self.local_NEM.sum(axis=1))

    def of_ranks(self, gpus_per_node: int) -> GroupTraffic:
        """Return the traffic where groups are ranks."""
        num_nodes, _, num_rows = self.local_NEM.shape
        node_R = np.repeat(np.arange(num_nodes), gpus_per_node)
        return self._of_groups(self.local_NEM, node_R, np.zeros((len(node_R), num_rows), dtype=np.int64))

    def of_ranks_inside(self, node: int, expert_X: NDArray[np.integer], gpus_per_node: int) -> GroupTraffic:
        """Return the traffic where groups are the ranks of a node, with these experts."""
        local_NXM = np.ascontiguousarray(self.local_NEM[node : node + 1, expert_X])
        none_GM = np.zeros((gpus_per_node, self.local_NEM.shape[2]), dtype=np.int64)
        return self._of_groups(local_NXM, np.zeros(gpus_per_node, dtype=np.int64), none_GM)

    def crossing_ME(self, load_ME: NDArray[np.int64], node_E: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the copies of every expert that come from other nodes, given the node that it lives on."""
        local_EM = self.local_NEM[node_E, np.arange(len(node_E))]
        return np.ascontiguousarray(load_ME - local_EM.T)

    def leaving_M(self, node_E: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the most copies that leave one node in every row."""
        local_EM = self.local_NEM[node_E, np.arange(len(node_E))]
        leaves_NM = self.local_NEM.sum(axis=1) - _sum_by_group(local_EM, node_E, len(self.local_NEM))
        leaving_M: NDArray[np.int64] = leaves_NM.max(axis=0)
        return leaving_M

    def _of_groups(
        self, local_NEM: NDArray[np.int64], node_P: NDArray[np.int64], out_PM: NDArray[np.int64]
    ) -> GroupTraffic:
        return GroupTraffic(local_NEM=local_NEM, node_P=node_P, out_PM=out_PM, price=self.price)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The sources of a step's token copies, and the price of a copy that enters or leaves an adapter."""

    load: StepLoad
    num_nodes: int
    price: int
    by_rank: bool
    node_S: NDArray[np.int64]
    _kept: dict[int, LayerTraffic] = field(default_factory=dict)

    @classmethod
    def of(cls, load: StepLoad, cluster: Cluster, params: PlanParams) -> "Traffic | None":
        """Return the traffic of a step, or None where there is only one node or dispatch is free."""
        cost = params.cost
        if cost is None or not dispatch_costs_time(cluster, params):
            return None
        most = int(load.load_MLE.sum(axis=-1).max(initial=1))
        price = round(min(cost.crossing_tokens * (1 << UNIT_BITS), MAX_PRICE, _MAX_CELL // most))
        if price == 0:
            return None
        return cls(
            load=load,
            num_nodes=cluster.num_nodes,
            price=price,
            by_rank=not cost.sends_once_per_node,
            node_S=load.source_rank_S.astype(np.int64) // cluster.gpus_per_node,
        )

    def layer(self, layer: int) -> LayerTraffic:
        """Return the traffic of one layer. Sums are kept where those of all layers, `[L, N, E, M]` numbers, are few."""
        if layer not in self._kept:
            layer_traffic = self._sum_layer(layer)
            if layer_traffic.local_NEM.nbytes * self.load.counts_SLE.shape[1] > MAX_KEPT_BYTES:
                return layer_traffic
            self._kept[layer] = layer_traffic
        return self._kept[layer]

    def crossing_MLE(self, home_LE: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the copies of every cell that come from other nodes than that of their expert."""
        crossing_MLE = np.empty_like(self.load.load_MLE)
        node_LE = home_LE // (self.load.num_ranks // self.num_nodes)
        for layer, node_E in enumerate(node_LE):
            crossing_MLE[:, layer] = self.layer(layer).crossing_ME(self.load.load_MLE[:, layer], node_E)
        return crossing_MLE

    def _sum_layer(self, layer: int) -> LayerTraffic:
        counts_SE = self.load.counts_SLE[:, layer]
        # Compiled for two types of counts, and not for every width that a job's counts may have.
        counts_SE = counts_SE.astype(np.uint32 if counts_SE.dtype.itemsize <= 4 else np.int64, order="C")
        return LayerTraffic(
            local_NEM=_sum_by_source(counts_SE, self.node_S, self.load.row_S, self.num_nodes, self.load.num_rows),
            price=self.price,
            by_rank=self.by_rank,
        )


def _sum_by_group(each_EM: NDArray[np.integer], group_E: NDArray[np.integer], num_groups: int) -> NDArray[np.int64]:
    """Return the sums over the experts of each of these equally large groups, `[P, M]`."""
    in_order_EM = each_EM[np.argsort(group_E, kind="stable")]
    sums_PM: NDArray[np.int64] = in_order_EM.reshape(num_groups, -1, each_EM.shape[1]).sum(axis=1, dtype=np.int64)
    return sums_PM


@compile_once
def _sum_by_source(
    counts_SE: NDArray[np.integer],
    node_S: NDArray[np.int64],
    row_S: NDArray[np.int32],
    num_nodes: int,
    num_rows: int,
) -> NDArray[np.int64]:
    """Return the sums over sequences by source node and row, `[N, E, M]`."""
    num_sequences, num_experts = counts_SE.shape
    local_NME = np.zeros((num_nodes, num_rows, num_experts), dtype=np.int64)
    for sequence in range(num_sequences):
        local_E = local_NME[node_S[sequence], row_S[sequence]]
        for expert in range(num_experts):
            local_E[expert] += counts_SE[sequence, expert]
    local_NEM = np.empty((num_nodes, num_experts, num_rows), dtype=np.int64)
    for node in range(num_nodes):
        for expert in range(num_experts):
            for row in range(num_rows):
                local_NEM[node, expert, row] = local_NME[node, row, expert]
    return local_NEM
