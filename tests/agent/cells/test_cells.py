import dataclasses

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.distributed.plans import random_plan
from relibra.agent.cells.cells import StepCells, fill_redundant_slots
from relibra.agent.transport import Copy
from relibra.kernels import EMPTY, REST
from relibra.planning import Cluster, Model, PlanId, Replicas, StepPlan
from relibra.planning.places import Placement

SEEDS = st.integers(0, 2**32 - 1)
CPU = torch.device("cpu")


def cells_of(placement: Placement, cluster: Cluster, ep_group: int, ep_rank: int, plan: StepPlan | None) -> StepCells:
    return StepCells(placement, cluster, ep_group=ep_group, ep_rank=ep_rank, plan=plan, device=CPU)


@settings(max_examples=40)
@given(st.data(), SEEDS, st.integers(1, 3))
def test_S5_slot_tables_say_what_the_plan_says(data: st.DataObject, seed: int, num_micro_batches: int) -> None:
    model, cluster = data.draw(shapes())
    plan = random_plan(seed, 0, model, cluster, num_micro_batches)
    placement = Placement.identity(model, cluster).with_homes(plan.home_rank_LE)
    share = cluster.experts_per_rank(model)
    for ep_group in range(cluster.num_ep_groups):
        cells = cells_of(placement, cluster, ep_group, 0, plan)
        for micro_batch in range(num_micro_batches):
            for layer in range(model.num_layers):
                want = {}
                for expert in range(model.num_experts):
                    rank, slot = placement.home_rank_LE[layer, expert], placement.home_slot_LE[layer, expert]
                    want[int(rank), int(slot)] = expert
                used = [share] * cluster.num_ranks
                row = ep_group * num_micro_batches + micro_batch
                for of_row, of_layer, expert, rank in plan.replicas.index_Y4.tolist():
                    if (of_row, of_layer) == (row, layer):
                        want[rank, used[rank]] = expert
                        used[rank] += 1
                table = cells.table(micro_batch, layer)
                if table is None:
                    assert want == {divmod(expert, share): expert for expert in range(model.num_experts)}
                    continue
                has_replicas = len(want) > model.num_experts
                shape = (cluster.num_ranks, share + has_replicas * cluster.redundant_slots)
                got = table.slot_expert_P.view(shape)
                assert (table.share_P is None) == has_replicas
                for rank, slot in np.ndindex(*shape):
                    assert int(got[rank, slot]) == want.get((rank, slot), EMPTY)


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_S5_all_ranks_of_a_node_mean_the_same_copies(data: st.DataObject, seed: int) -> None:
    model, cluster = data.draw(shapes())
    plan = random_plan(seed, 0, model, cluster, 2)
    placement = Placement.identity(model, cluster).with_homes(plan.home_rank_LE)
    share, size = cluster.experts_per_rank(model), cluster.gpus_per_node
    by_rank = [cells_of(placement, cluster, 0, rank, plan) for rank in range(cluster.num_ranks)]
    travelled = 0
    for micro_batch, layer in np.ndindex(2, model.num_layers):
        for node in range(cluster.num_nodes):
            copies, *others = [by_rank[node * size + i].copies(micro_batch, layer) for i in range(size)]
            assert all(other == copies for other in others)
            for copy in copies:
                slot_expert_P = by_rank[0].table(micro_batch, layer).slot_expert_P
                source_rank, destination_rank = node * size + copy.source_rank, node * size + copy.destination_rank
                slot = destination_rank * (share + cluster.redundant_slots) + share + copy.destination_slot
                held = int(slot_expert_P[slot])
                assert held == placement.expert_of_slot(source_rank)[layer][copy.source_slot]
            by_home = [(copy.source_rank, copy.source_slot, copy.destination_rank) for copy in copies]
            for home in {each[:2] for each in by_home}:
                ranks = [each[2] for each in by_home if each[:2] == home]
                assert ranks == sorted(set(ranks))
            travelled += len(by_home)
    assert travelled == plan.replicas.count_ML[:2].sum()


def test_without_a_plan_or_a_micro_batch_there_are_no_replicas() -> None:
    model, cluster = (
        Model(num_layers=1, num_experts=4, top_k=1),
        Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1),
    )
    placement = Placement.identity(model, cluster)
    for cells in (cells_of(placement, cluster, 0, 0, None), planned(placement, cluster)):
        for micro_batch in (None, 2):
            assert cells.table(micro_batch, 0) is None
            assert micro_batch is None or not cells.copies(micro_batch, 0)
    moved = placement.with_homes(np.array([[1, 0, 0, 1]], dtype=np.int32))
    table = cells_of(moved, cluster, 0, 0, None).table(None, 0)
    assert table is not None
    assert table.slot_expert_P.tolist() == [2, 1, 0, 3]
    assert table.share_P.tolist() == [REST] * 4
    table = planned(placement, cluster).table(1, 0)
    assert table is not None
    assert table.slot_expert_P.tolist() == [0, 1, EMPTY, 2, 3, 1]
    assert table.share_P is None
    assert table.replicas is not None
    assert table.replicas.slot_Y.tolist() == [5]
    assert planned(placement, cluster).copies(1, 0) == (
        Copy(source_rank=0, source_slot=1, destination_rank=1, destination_slot=0),
    )
    later = planned(placement, cluster)
    assert later.copies(3, 0) == later.copies(1, 0), "more micro-batches than planned use the plan in turn"
    assert later.table(3, 0).slot_expert_P.tolist() == [0, 1, EMPTY, 2, 3, 1]
    assert planned(placement, cluster).layers_with_replicas(1, [0]) == [0]
    assert planned(placement, cluster).layers_with_replicas(0, [0]) == []


def test_S5_a_cell_knows_of_replicas_in_other_groups_and_nodes() -> None:
    """DDP reduces the gradients of the ranks that hold the same experts in one order only if all of them know."""
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
    placement = Placement.identity(Model(num_layers=1, num_experts=4, top_k=1), cluster)
    replicas = Replicas.of(INDEX_Y4, 4, 1)
    plan = dataclasses.replace(PLANNED, home_rank_LE=placement.home_rank_LE, replicas=replicas)
    for ep_group in range(2):
        for ep_rank in range(4):
            cells = cells_of(placement, cluster, ep_group, ep_rank, plan)
            is_near = (ep_group, ep_rank // 2) == (0, 0)
            assert [bool(cells.copies(micro_batch, 0)) for micro_batch in range(3)] == [False, is_near, False]
            assert [cells.is_replicated_anywhere(micro_batch, 0) for micro_batch in range(3)] == [False, True, False]


def planned(placement: Placement, cluster: Cluster) -> StepCells:
    return cells_of(placement, cluster, 0, 0, dataclasses.replace(PLANNED, home_rank_LE=placement.home_rank_LE))


INDEX_Y4 = np.array([[1, 0, 1, 1]], dtype=np.int32)
PLANNED = StepPlan(
    id=PlanId(epoch=1, version=1),
    step=0,
    digest=b"",
    home_rank_LE=np.zeros((0, 0), dtype=np.int32),
    replicas=Replicas.of(INDEX_Y4, 2, 1),
    num_micro_batches=2,
    reason="",
)
"""A plan without homes, in which expert 1 has a replica on rank 1, in micro-batch 1 of 2."""


def test_replicas_fill_redundant_slots_from_the_first_on_in_order_of_expert() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3)
    home_LP = np.array([[0, EMPTY, EMPTY, EMPTY, 1, EMPTY, EMPTY, EMPTY]], dtype=np.int32)
    for dtype in (np.uint8, np.int64):
        count_ML, expert_Y, rank_Y = (
            np.array(each, dtype=dtype) for each in ([[5], [0], [2]], [2, 3, 4, 5, 6, 4, 6], [1, 0, 0, 1, 1, 0, 1])
        )
        replicas = Replicas(count_ML=count_ML, expert_Y=expert_Y, rank_Y=rank_Y)
        slot_expert_MLP, place_Y = fill_redundant_slots(home_LP, replicas, cluster)
        assert slot_expert_MLP[0].tolist() == [[0, 3, 4, EMPTY, 1, 2, 5, 6]]
        assert slot_expert_MLP[1].tolist() == home_LP.tolist()
        assert slot_expert_MLP[2].tolist() == [[0, 4, EMPTY, EMPTY, 1, 6, EMPTY, EMPTY]]
        assert place_Y.tolist() == [5, 1, 2, 6, 7, 1, 5]
