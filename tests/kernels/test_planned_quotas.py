"""The plan's quotas, the agent's tables and the slots that `quota_remap` fills agree exactly.

M rows, L layers, R ranks, E experts, T tokens, P physical slots.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.token_split import split
from relibra.kernels import EMPTY, cuda, quota_remap
from relibra.kernels.launch import Run
from relibra.planning import Cluster, Model, Plan, PlanId, PlanParams, Schedule, StepLoad, StepPlan
from relibra.planning.expected.realised import realised_loads
from relibra.planning.places import Placement
from relibra.planning.solve import solve

Remap = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Computed = Counter[tuple[int, int, int, int]]
"""Tokens by (row, layer, expert, rank)."""
_SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(params=["operator", "kernel"], scope="module")
def remap(request: pytest.FixtureRequest, emulation: Callable[[bool], Run]) -> Remap:
    """The operator on the CPU, and the CUDA kernel in its emulation."""
    return quota_remap if request.param == "operator" else partial(cuda.quota_remap, emulation(False))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    return Cluster(
        num_nodes=draw(st.integers(1, 2)),
        gpus_per_node=draw(st.integers(2, 3)),
        redundant_slots=draw(st.integers(1, 2)),
        num_ep_groups=draw(st.integers(1, 2)),
    )


def random_load(rng: np.random.Generator, cluster: Cluster, num_experts: int) -> NDArray[np.int64]:
    """Return a skewed load `[M, L, R, E]`: two micro-batches, two layers, some experts and ranks without tokens."""
    shape = (2 * cluster.num_ep_groups, 2, cluster.num_ranks, num_experts)
    popularity_MLRE = rng.lognormal(0, 1.5, (*shape[:2], 1, num_experts)) * (rng.random(shape) < 0.7)
    return rng.poisson(4 * popularity_MLRE)


def planned(cluster: Cluster, load_MLRE: NDArray[np.int64]) -> Plan:
    num_rows, num_layers, num_ranks, num_experts = load_MLRE.shape
    row_S, source_rank_S = np.repeat(np.arange(num_rows), num_ranks), np.tile(np.arange(num_ranks), num_rows)
    schedule = Schedule(micro_batch_S=row_S % 2, source_rank_S=source_rank_S, ep_group_S=row_S // 2)
    model = Model(num_layers=num_layers, num_experts=num_experts, top_k=1)
    load = StepLoad.of_sources(load_MLRE)
    return solve(load, schedule, model, cluster, PlanParams(min_tokens_per_replica=1))


def routed(rng: np.random.Generator, load_E: NDArray[np.int64]) -> Tensor:
    """Return a routing map `[T, E]` of random tokens with exactly this load."""
    num_tokens = int(load_E.max()) + int(rng.integers(0, 4))
    chosen_ET = [rng.permutation(num_tokens) < tokens for tokens in load_E]
    return torch.from_numpy(np.stack(chosen_ET, axis=1))


def executed(remap: Remap, rng: np.random.Generator, plan: Plan, load_MLRE: NDArray[np.int64]) -> Computed:
    """Return the tokens that all ranks compute under the plan when this load is routed."""
    cluster, computed = plan.cluster, Computed()
    placement = Placement.identity(plan.model, cluster).with_homes(plan.home_rank_LE)
    num_rows, num_layers, num_ranks, _ = load_MLRE.shape
    for rank in range(num_ranks):
        own = StepPlan.of(plan, id=PlanId(epoch=1, version=1), step=0)
        cells_of_group = [
            StepCells(placement, cluster, ep_group=ep_group, ep_rank=rank, plan=own, device=torch.device("cpu"))
            for ep_group in range(cluster.num_ep_groups)
        ]
        for row, layer in np.ndindex(num_rows, num_layers):
            routing_map_TE = routed(rng, load_MLRE[row, layer, rank])
            table = cells_of_group[row // 2].table(row % 2, layer)
            tokens_E = routing_map_TE.sum(dim=0).tolist()
            if table is None:  # plain expert parallelism
                of_slot = [(expert, tokens) for expert, tokens in enumerate(tokens_E)]
            else:
                share_P = table.share_P
                if share_P is None:
                    counts_RE = torch.from_numpy(load_MLRE[row, layer]).int()
                    share_P = split(table, counts_RE, rank, cluster.gpus_per_node)
                _, routing_map_TP = remap(routing_map_TE.float(), routing_map_TE, table.slot_expert_P, share_P)
                of_slot = list(zip(table.slot_expert_P.tolist(), routing_map_TP.sum(dim=0).tolist(), strict=True))
            slots_per_rank = len(of_slot) // num_ranks
            for slot, (expert, tokens) in enumerate(of_slot):
                assert tokens == 0 or expert != EMPTY
                if tokens:
                    computed[row, layer, expert, slot // slots_per_rank] += tokens
    return computed


@settings(max_examples=12)
@given(clusters(), st.integers(1, 3), _SEEDS)
def test_S5_every_rank_computes_its_quotas_where_the_load_is_the_planned_one(
    remap: Remap, cluster: Cluster, experts_per_rank: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    load_MLRE = random_load(rng, cluster, cluster.num_ranks * experts_per_rank)
    plan = planned(cluster, load_MLRE)
    quotas = zip(map(tuple, plan.quotas.index_Q4.tolist()), plan.quotas.tokens_Q.tolist(), strict=True)
    assert executed(remap, rng, plan, load_MLRE) == Computed({index: tokens for index, tokens in quotas if tokens})


@settings(max_examples=12)
@given(clusters(), st.integers(1, 3), _SEEDS)
def test_S5_another_load_than_the_planned_one_is_split_as_planning_foresees_and_computed_whole(
    remap: Remap, cluster: Cluster, experts_per_rank: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    num_experts = cluster.num_ranks * experts_per_rank
    plan, load_MLRE = planned(cluster, random_load(rng, cluster, num_experts)), random_load(rng, cluster, num_experts)
    computed = executed(remap, rng, plan, load_MLRE)
    by_rank_MLR, by_expert_MLE = np.zeros(plan.rank_loads_MLR.shape, int), np.zeros(load_MLRE.sum(axis=2).shape, int)
    for (row, layer, expert, rank), tokens in computed.items():
        by_rank_MLR[row, layer, rank] += tokens
        by_expert_MLE[row, layer, expert] += tokens
    assert np.array_equal(by_rank_MLR, realised_loads(plan, StepLoad.of_sources(load_MLRE)))
    assert np.array_equal(by_expert_MLE, load_MLRE.sum(axis=2))
