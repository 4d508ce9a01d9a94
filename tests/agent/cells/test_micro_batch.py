import numpy as np
import torch

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, current, running
from relibra.agent.placement import Placement
from relibra.planning import Cluster, Model


def test_recording_again_sets_the_same_value() -> None:
    realised = RealisedLoad(2, 3)
    for _ in range(2):
        realised.record(1, 2, torch.tensor(5))
    assert realised.load_ML.tolist() == [[0, 0, 0], [0, 0, 5]]


def test_the_tokens_of_all_slots_of_a_cell_count() -> None:
    realised = RealisedLoad(2, 2)
    realised.record(0, 0, torch.tensor([3, 0, 4]))
    realised.record(0, 1, torch.tensor(5))
    realised.record(1, 1, torch.tensor([0, 0, 0, 2], dtype=torch.int32))
    assert realised.load_ML.tolist() == [[7, 5], [0, 2]]
    realised.record(1, 0, torch.tensor([1]))
    assert realised.load_ML.tolist() == [[7, 5], [1, 2]]


def test_more_micro_batches_than_planned_still_count() -> None:
    realised = RealisedLoad(0, 2)
    realised.record(2, 0, torch.tensor(4))
    assert np.array_equal(realised.load_ML, [[0, 0], [0, 0], [4, 0]])


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
