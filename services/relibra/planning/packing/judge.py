"""What a schedule is worth: the objective of planning under the placement that `reorder` chooses for it.

Replicas even out only the ranks of a node. So a schedule is judged by its nodes, and with one node or no slots by its
ranks: by the tokens of the largest one, summed over cells, and by the copies that enter or leave the busiest one where
dispatch has a price. The swap search of `reorder` has the same objective.

S sequences, M rows, L layers, E experts, N nodes, P groups (nodes or ranks).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.check import check_placement
from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad
from relibra.planning.packing.caps import NO_LIMIT
from relibra.planning.peak import find_peak
from relibra.planning.placement.objective import objective
from relibra.planning.placement.reorder import reorder
from relibra.planning.prices import price_moves, price_replicas
from relibra.planning.schedule import Packing, Schedule
from relibra.planning.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A schedule with its placement, and what it costs."""

    packing: Packing
    cost: int
    """The objective, in tokens of the largest group; lower is better."""
    peak_bytes: int = 0
    """The least that activations take on the hottest rank under any replicas; 0 where there is no budget."""
    budget_bytes: int = 0

    @property
    def excess_bytes(self) -> int:
        """The least memory that the hottest rank lacks. A step that fails costs more than any other."""
        return max(0, self.peak_bytes - self.budget_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The sequences of a step and the job that trains them."""

    counts_SLE: NDArray[np.integer]
    """Token copies of every sequence."""
    model: Model
    cluster: Cluster
    params: PlanParams
    previous_LE: NDArray[np.int32]
    """The current placement; where homes stay, that of plain expert parallelism."""
    is_draft: bool = False
    """Whether placements only say where sequences had best be, because the plan chooses its own."""

    @property
    def num_groups(self) -> int:
        """P: groups that replicas do not leave."""
        cluster = self.cluster
        return cluster.num_nodes if cluster.num_nodes > 1 and cluster.redundant_slots else cluster.num_ranks

    def price_under(self, schedule: Schedule) -> int:
        """Return the price of a copy at the busiest group, in units of 2**-10 tokens; 0 where dispatch is free."""
        traffic = Traffic.of(StepLoad.of(self.counts_SLE, schedule, self.cluster), self.cluster, self.params)
        return 0 if traffic is None else traffic.price

    def judge(self, schedule: Schedule, home_LE: NDArray[np.int32] | None = None) -> Judged:
        """Return a schedule with its cost, by a placement: by default the one that `reorder` chooses."""
        load = StepLoad.of(self.counts_SLE, schedule, self.cluster)
        traffic = Traffic.of(load, self.cluster, self.params)
        if home_LE is None and self.params.homes_stay:
            home_LE = self.previous_LE
        if home_LE is None:
            home_LE, _ = reorder(
                load.load_MLE,
                self.previous_LE,
                self.cluster.identity_placement(self.model),
                self.cluster,
                price_replicas(self.params, load.load_MLE, self.model, self.cluster),
                self.params.seed,
                hysteresis=price_moves(self.params, self.model, self.cluster),
                traffic=traffic,
                is_draft=self.is_draft,
            )
        cost = 0
        peak_bytes = self._peak_bytes(load.load_MLE, home_LE)
        for layer, group_E in enumerate(self.group_LE(home_LE)):
            of_groups = None
            if traffic is not None:
                of_layer, size = traffic.layer(layer), self.cluster.gpus_per_node
                is_by_node = self.num_groups == self.cluster.num_nodes
                of_groups = of_layer.of_nodes() if is_by_node else of_layer.of_ranks(size)
            cost += objective(load.load_MLE[:, layer], group_E, self.num_groups, of_groups)
        return Judged(
            packing=Packing(schedule=schedule, home_LE=home_LE),
            cost=cost,
            peak_bytes=peak_bytes,
            budget_bytes=self.params.memory.budget_bytes,
        )

    def _peak_bytes(self, load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32]) -> int:
        """Return the least memory of the hottest rank, if its group shares its tokens evenly; 0 without a budget."""
        memory = self.params.memory
        if not memory.budget_bytes:
            return 0
        shared_MLP = -(-self._shared_MLP(load_MLE, home_LE) // self._num_sharing)
        return find_peak(shared_MLP, memory, self.cluster.num_ep_groups).size_bytes or 0

    @property
    def _num_sharing(self) -> int:
        """The size of a group: the number of ranks that can share the tokens of their experts."""
        return self.cluster.gpus_per_node if self.cluster.redundant_slots else 1

    def _shared_MLP(self, load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the loads of the groups whose ranks can share them."""
        num_groups = self.cluster.num_ranks // self._num_sharing
        return group_loads(load_MLE, home_LE // np.int32(self._num_sharing), num_groups)

    def group_LE(self, home_LE: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the group of every expert."""
        return home_LE // np.int32(self.cluster.num_ranks // self.num_groups)

    def most_copies(self, start: Judged) -> int:
        """Return how many token copies a group may compute in its fullest row so that the step fits into memory."""
        if not start.peak_bytes:
            return NO_LIMIT
        load_MLE = StepLoad.of(self.counts_SLE, start.packing.schedule, self.cluster).load_MLE
        copies_MP = self._shared_MLP(load_MLE, start.packing.home_LE).sum(axis=1)
        return int(copies_MP.max()) * start.budget_bytes // start.peak_bytes

    def load_SLP(self, home_LE: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the token copies that every sequence routes to every group."""
        return group_loads(self.counts_SLE, self.group_LE(home_LE), self.num_groups)

    def num_local(self, packing: Packing) -> int:
        """Return the number of token copies whose expert has its home on the node of their source rank."""
        size = np.int32(self.cluster.gpus_per_node)
        of_nodes_SLN = group_loads(self.counts_SLE, packing.home_LE // size, self.cluster.num_nodes)
        node_S = packing.schedule.source_rank_S // size
        return int(of_nodes_SLN.sum(axis=1)[np.arange(len(node_S)), node_S].sum())


def judge_of(
    counts_SLE: NDArray[np.integer],
    length_S: NDArray[np.int64],
    start: Schedule,
    model: Model,
    cluster: Cluster,
    params: PlanParams | None,
    previous_home_LE: NDArray[np.integer] | None,
) -> Judge:
    """Return the judge of a step. Args as those of `pack`.

    Raises:
        InvalidInput: counts, lengths and schedule do not belong to each other or to the cluster.
        InvalidPlan: `previous_home_LE` is not a placement.
    """
    _check(counts_SLE, length_S, start, model, cluster)
    params = (params or PlanParams()).counting_copies(model, cluster)
    previous_LE = cluster.identity_placement(model)
    if previous_home_LE is not None and not params.homes_stay:
        check_placement(previous_home_LE, model, cluster)
        previous_LE = previous_home_LE.astype(np.int32)
    return Judge(counts_SLE=counts_SLE, model=model, cluster=cluster, params=params, previous_LE=previous_LE)


def _check(
    counts_SLE: NDArray[np.integer], length_S: NDArray[np.int64], start: Schedule, model: Model, cluster: Cluster
) -> None:
    start.check(cluster)
    expected = (start.num_sequences, model.num_layers, model.num_experts)
    if counts_SLE.shape != expected:
        raise InvalidInput.of("counts", expected=f"shape [S, L, E] = {expected}", got=counts_SLE.shape)
    if length_S.shape != expected[:1] or length_S.min() < 0:
        raise InvalidInput.of("lengths", expected=f"{expected[0]} numbers, none below 0", got=length_S)


@compile_once
def group_loads(counts_SLE: NDArray[np.integer], group_LE: NDArray[np.int32], num_groups: int) -> NDArray[np.int64]:
    """Return the token copies that every sequence routes to every group of ranks, int64 `[S, L, P]`."""
    num_sequences, num_layers, num_experts = counts_SLE.shape
    load_SLP = np.zeros((num_sequences, num_layers, num_groups), dtype=np.int64)
    for sequence in range(num_sequences):
        for layer in range(num_layers):
            for expert in range(num_experts):
                load_SLP[sequence, layer, group_LE[layer, expert]] += np.int64(counts_SLE[sequence, layer, expert])
    return load_SLP
