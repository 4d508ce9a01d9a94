import numpy as np
import torch

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, current, running
from relibra.planning import Cluster, Model, PlanId, Replicas, StepPlan
from relibra.planning.execution import sample_micro_batches
from relibra.planning.places import Placement

MODEL = Model(num_layers=2, num_experts=4, top_k=1)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
PLAN = StepPlan(
    id=PlanId(epoch=1, version=1),
    step=1,
    digest=b"",
    home_rank_LE=np.array([[0, 1, 0, 1], [0, 0, 1, 1]], dtype=np.int32),
    replicas=Replicas.of(np.array([[0, 0, 3, 0]], dtype=np.int32), 1, 2),
    num_micro_batches=1,
    reason="",
)


def cells_of(plan: StepPlan | None, ep_rank: int = 0) -> StepCells:
    placement = Placement.identity(MODEL, CLUSTER)
    placement = placement if plan is None else placement.with_homes(plan.home_rank_LE)
    return StepCells(placement, CLUSTER, ep_group=0, ep_rank=ep_rank, plan=plan, device=torch.device("cpu"))


def test_recording_again_sets_the_same_value() -> None:
    realised = RealisedLoad(2, 2, 4)
    for _ in range(2):
        realised.record(1, 0, torch.tensor([2, 3]), cells_of(None))
    assert realised.load_ML.tolist() == [[0, 0], [5, 0]]
    assert realised.expert_load_NLE[1, 0].tolist() == [2, 3, 0, 0]


def test_the_tokens_of_all_slots_of_a_cell_count_for_the_experts_in_them() -> None:
    realised, cells = RealisedLoad(1, 2, 4), cells_of(PLAN)
    realised.record(0, 0, torch.tensor([3, 1, 4]), cells)  # experts 0 and 2, and a replica of 3
    realised.record(0, 1, torch.tensor([5, 0], dtype=torch.int32), cells)  # no replica in this cell
    assert realised.load_ML.tolist() == [[8, 5]]
    assert realised.expert_load_NLE.tolist() == [[[3, 0, 1, 4], [5, 0, 0, 0]]]
    other = RealisedLoad(1, 2, 4)
    other.record(0, 0, torch.tensor([7, 2, 0]), cells_of(PLAN, ep_rank=1))  # experts 1 and 3, and an empty slot
    assert other.expert_load_NLE[0, 0].tolist() == [0, 7, 0, 2]


def test_padding_of_slots_is_no_load() -> None:
    realised = RealisedLoad(1, 2, 4)
    realised.record(0, 0, torch.tensor([8, 8]), cells_of(None), num_tokens=torch.tensor(11))
    assert realised.load_ML[0, 0] == 11


def test_more_micro_batches_than_planned_still_count_and_a_few_of_them_are_told_by_expert() -> None:
    realised = RealisedLoad(0, 2, 4)
    for micro_batch in range(9):
        realised.record(micro_batch, 0, torch.tensor([micro_batch, 0]), cells_of(None))
    assert realised.load_ML[:, 0].tolist() == list(range(9))
    assert sample_micro_batches(9).tolist() == [0, 2, 5, 8]
    assert realised.expert_load_NLE[:, 0, 0].tolist() == [0, 2, 5, 8]


def test_a_micro_batch_belongs_to_the_agent_that_opened_it() -> None:
    model, cluster = (
        Model(num_layers=1, num_experts=2, top_k=1),
        Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=0),
    )
    placement = Placement.identity(model, cluster)
    cells = StepCells(placement, cluster, ep_group=0, ep_rank=0, plan=None, device=torch.device("cpu"))
    actor, critic = object(), object()
    micro_batch = MicroBatch(owner=actor, index=3, cells=cells, realised=None)
    with running(micro_batch):
        assert current(actor) is micro_batch
        assert current(critic) is None
        with running(None):
            assert current(actor) is None
        assert current(actor) is micro_batch
    assert current(actor) is None
