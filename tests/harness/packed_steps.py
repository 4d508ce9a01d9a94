"""Random steps of a few domains, as packing gets them."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad
from relibra.planning.load import home_loads
from relibra.planning.packing.pack import pack
from relibra.planning.placement.reorder import reorder

DEAR = PlanParams(cost=CostModel(token_size_bytes=4096.0, inter_node_bytes_per_us=1024.0))
"""A copy that crosses costs as much as three tokens."""


@dataclass(frozen=True, kw_only=True)
class PackedStep:
    """Sequences of a few domains; each domain has popular experts of its own."""

    counts_SLE: np.ndarray
    length_S: np.ndarray
    start: Schedule
    model: Model
    cluster: Cluster

    @classmethod
    def random(cls, seed, num_sequences=48, num_micro_batches=4, num_layers=3, num_ep_groups=1, slots=1, shape=(2, 2)):
        rng = np.random.default_rng(seed)
        cluster = Cluster(
            num_nodes=shape[0], gpus_per_node=shape[1], redundant_slots=slots, num_ep_groups=num_ep_groups
        )
        num_experts = 4 * cluster.num_ranks
        popularity_DLE = rng.lognormal(0, 1.2, (3, num_layers, num_experts))
        popularity_DLE /= popularity_DLE.sum(axis=-1, keepdims=True)
        length_S = rng.integers(20, 400, num_sequences)
        domain_S = rng.integers(0, 3, num_sequences)
        return cls(
            counts_SLE=rng.poisson(length_S[:, None, None] * 4 * popularity_DLE[domain_S]).astype(np.uint32),
            length_S=length_S,
            start=Schedule.round_robin(num_sequences, num_micro_batches, cluster),
            model=Model(num_layers=num_layers, num_experts=num_experts, top_k=4),
            cluster=cluster,
        )

    def pack(self, token_budget=None, **fields):
        return pack(self.counts_SLE, self.length_S, self.start, self.model, self.cluster, token_budget, **fields)

    def sizes_MR(self, schedule, number_S):
        sum_MR = np.zeros((schedule.num_rows(self.cluster), self.cluster.num_ranks), dtype=np.int64)
        np.add.at(sum_MR, (schedule.row_S, schedule.source_rank_S), number_S)
        return sum_MR

    def load_MLE(self, schedule):
        return StepLoad.of(self.counts_SLE, schedule, self.cluster).load_MLE

    def floor(self, schedule, home_LE=None):
        load_MLE = self.load_MLE(schedule)
        if home_LE is None:
            identity_LE = self.cluster.identity_placement(self.model)
            home_LE, _ = reorder(load_MLE, identity_LE, identity_LE, self.cluster)
        is_by_node = self.cluster.num_nodes > 1 and self.cluster.redundant_slots > 0
        size = np.int32(self.cluster.gpus_per_node if is_by_node else 1)
        return int(home_loads(load_MLE, home_LE // size, self.cluster.num_ranks // size).max(axis=-1).sum())

    def num_local(self, schedule, home_LE):
        home_node_LE = home_LE // self.cluster.gpus_per_node
        node_S = schedule.source_rank_S // self.cluster.gpus_per_node
        return sum(
            counts_LE[home_node_LE == node].sum() for counts_LE, node in zip(self.counts_SLE, node_S, strict=True)
        )


steps = st.builds(
    PackedStep.random,
    st.integers(0, 10**6),
    num_sequences=st.integers(8, 60),
    num_micro_batches=st.integers(1, 5),
    num_ep_groups=st.integers(1, 2),
    slots=st.integers(0, 2),
    shape=st.sampled_from([(1, 2), (1, 1), (2, 2), (3, 1), (2, 3)]),
)
