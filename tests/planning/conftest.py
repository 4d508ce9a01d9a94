from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule, StepLoad
from relibra.planning.prices import ReplicaPrice, price_replicas
from relibra.planning.solve import solve


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The arguments of `solve`."""

    model: Model
    cluster: Cluster
    schedule: Schedule
    load: StepLoad
    params: PlanParams
    previous_home_LE: NDArray[np.int32] | None = None

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        num_nodes: int = 2,
        gpus_per_node: int = 2,
        experts_per_rank: int = 2,
        redundant_slots: int = 1,
        num_ep_groups: int = 1,
        num_layers: int = 2,
        num_micro_batches: int = 3,
        num_sequences: int = 12,
        scale: int = 1000,
        min_tokens_per_replica: int = 1,
        expert_weight_size_bytes: int = 0,
        has_previous: bool = False,
    ) -> "Problem":
        rng = np.random.default_rng(seed)
        cluster = Cluster(
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
            redundant_slots=redundant_slots,
            num_ep_groups=num_ep_groups,
        )
        num_experts = cluster.num_ranks * experts_per_rank
        popularity_LE = rng.lognormal(0, 1.2, (num_layers, num_experts))
        counts_SLE = rng.poisson(popularity_LE * scale / popularity_LE.mean(), (num_sequences, num_layers, num_experts))
        schedule = Schedule(
            micro_batch_S=rng.integers(0, num_micro_batches, num_sequences),
            source_rank_S=rng.integers(0, cluster.num_ranks, num_sequences),
            ep_group_S=rng.integers(0, num_ep_groups, num_sequences),
        )
        previous_LE = np.stack([rng.permutation(num_experts) // experts_per_rank for _ in range(num_layers)])
        return cls(
            model=Model(
                num_layers=num_layers,
                num_experts=num_experts,
                top_k=1,
                expert_weight_size_bytes=expert_weight_size_bytes,
            ),
            cluster=cluster,
            schedule=schedule,
            load=StepLoad.of(counts_SLE, schedule, cluster),
            params=PlanParams(min_tokens_per_replica=min_tokens_per_replica),
            previous_home_LE=previous_LE.astype(np.int32) if has_previous else None,
        )

    @cached_property
    def load_MLE(self) -> NDArray[np.int64]:
        return self.load.load_MLE

    @property
    def price(self) -> ReplicaPrice:
        return price_replicas(self.params, self.load_MLE, self.model, self.cluster)

    def solve(self) -> Plan:
        return solve(self.load, self.schedule, self.model, self.cluster, self.params, self.previous_home_LE)


@pytest.fixture(scope="session")
def random_problem() -> type[Problem]:
    """The class of problems: `random_problem.random(seed, …)` makes one."""
    return Problem


@pytest.fixture(scope="session")
def problems() -> st.SearchStrategy[Problem]:
    """A strategy for small problems of every kind; draw from it with `data.draw`."""
    return st.builds(
        Problem.random,
        st.integers(0, 10**6),
        num_nodes=st.integers(1, 3),
        gpus_per_node=st.integers(1, 4),
        experts_per_rank=st.integers(1, 4),
        redundant_slots=st.integers(0, 3),
        num_ep_groups=st.integers(1, 2),
        num_layers=st.integers(1, 3),
        num_micro_batches=st.integers(1, 4),
        num_sequences=st.integers(1, 16),
        scale=st.sampled_from([0, 1, 30, 3000]),
        min_tokens_per_replica=st.sampled_from([1, 40]),
        expert_weight_size_bytes=st.sampled_from([0, 1 << 20]),
        has_previous=st.booleans(),
    )
