"""What follows from the plan for a cell, as each rank of the node sees it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.pass_order import PassOrder
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.experts import SequentialExperts
from relibra.planning import Cluster, Model, PlanId, Replicas, StepPlan
from relibra.planning.places import Placement

MODEL = Model(num_layers=4, num_experts=4, top_k=1)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
REPLICAS = [(0, 0, 0, 1), (0, 2, 0, 1), (0, 2, 1, 1), (0, 2, 3, 0), (0, 3, 2, 0)]
"""(micro-batch, layer, expert, rank): layers 0, 2 and 3 have replicas. Ranks 0 and 1 have two home experts each."""


def cell_of(
    layer: int, rank: int, *, reduces_early: bool = False, in_inference_mode: bool = False
) -> tuple[ReplicatedCell, SequentialExperts]:
    plan = StepPlan(
        id=PlanId(epoch=1, version=1),
        step=0,
        digest=b"",
        home_rank_LE=CLUSTER.identity_placement(MODEL),
        replicas=Replicas.of(np.array(REPLICAS, np.int32), 1, 4),
        num_micro_batches=1,
        reason="",
    )
    placement = Placement.identity(MODEL, CLUSTER)
    cells = StepCells(placement, CLUSTER, ep_group=0, ep_rank=rank, plan=plan, device=torch.device("cpu"))
    module = SimpleNamespace(local_experts=torch.nn.ModuleList(torch.nn.Linear(2, 3) for _ in range(2)))
    experts = SequentialExperts(module)
    with torch.inference_mode(in_inference_mode):
        cell = ReplicatedCell(
            cells, 0, layer, order=PassOrder([range(4)]), experts=experts, rank=rank, reduces_early=reduces_early
        )
    return cell, experts


@pytest.mark.parametrize(
    ("layer", "rank", "side", "num_own", "accepting_slots"),
    [(0, 0, 0, 0, [0]), (0, 1, 0, 1, []), (2, 0, 1, 1, [0, 1]), (2, 1, 1, 2, [1]), (3, 1, 0, 0, [0])],
)
def test_a_cell_knows_its_side_its_replicas_and_whose_gradients_return(
    layer: int, rank: int, side: int, num_own: int, accepting_slots: list[int]
) -> None:
    cell, experts = cell_of(layer, rank)
    assert (cell.use.side, cell.num_own) == (side, num_own)
    assert list(map(id, cell.accepting)) == [id(each) for slot in accepting_slots for each in experts.parameters[slot]]
    assert cell.use == cell.use_in_backward._replace(in_backward=False)


def test_S5_all_parameters_wait_if_ddp_reduces_early_also_without_replicas_in_this_node() -> None:
    for layer in (0, 1):
        cell, experts = cell_of(layer, 1, reduces_early=True)
        assert bool(cell.copies) == (layer == 0)
        assert list(map(id, cell.accepting)) == [id(each) for of_slot in experts.parameters for each in of_slot]


def test_the_first_pass_with_a_backward_finds_what_trains() -> None:
    """A pass before it may compute log-probs in inference mode, whose tensors cannot train."""
    cell, experts = cell_of(0, 0, in_inference_mode=True)
    experts.parameters[0][1].requires_grad_(False)
    assert list(map(id, cell.accepting)) == [id(experts.parameters[0][0])]
    assert cell.anchor.requires_grad
    assert not cell.anchor.is_inference()
    assert cell.anchor is cell.anchor
