"""The guess of the use after a use, in the schedules of Megatron."""

import itertools

import pytest
import torch

from harness.distributed.plans import random_plan
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.pass_order import Moment, PassOrder, Use
from relibra.planning import Cluster, Model
from relibra.planning.places import Placement

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
CHUNKS = [[1, 4, 6], [2, 3]]
NUM_MICRO_BATCHES = 4
TWO_STAGES = {
    "plain": (1, 0, 1, "F0 B0 F1 B1 F2 B2 F3 B3"),
    "1F1B, first stage": (1, 0, 2, "F0 F1 B0 F2 B1 F3 B2 B3"),
    "1F1B, last stage": (1, 1, 2, "F0 B0 F1 B1 F2 B2 F3 B3"),
    # A second digit is the chunk.
    "interleaved, last stage": (2, 1, 2, "F00 F10 F01 B01 F11 B11 F20 B00 F30 B10 F21 B21 F31 B31 B20 B30"),
}


def cells_of(num_micro_batches: int = NUM_MICRO_BATCHES) -> StepCells:
    """Return the cells of a plan that leaves some of them without replicas."""
    model = Model(num_layers=8, num_experts=4, top_k=1)
    plan = random_plan(6, 0, model, CLUSTER, num_micro_batches, move=False)
    placement = Placement.identity(model, CLUSTER)
    return StepCells(placement, CLUSTER, ep_group=0, ep_rank=0, plan=plan, device=torch.device("cpu"))


def uses_of(order: PassOrder, cells: StepCells, passes: str) -> list[Use]:
    """Return the uses in passes, as they are written above."""
    uses = []
    for name in passes.split():
        micro_batch, chunk = int(name[1]), int(name[2:] or 0)
        layers = CHUNKS[chunk] if name[0] == "F" else CHUNKS[chunk][::-1]
        uses += [
            order.use(cells, micro_batch, layer, in_backward=name[0] == "B")
            for layer in layers
            if cells.copies(micro_batch, layer)
        ]
    return uses


@pytest.mark.parametrize(("num_chunks", "stage", "num_stages", "passes"), TWO_STAGES.values(), ids=TWO_STAGES)
def test_all_uses_of_a_phase_follow_one_another(num_chunks: int, stage: int, num_stages: int, passes: str) -> None:
    order, cells = PassOrder(CHUNKS[:num_chunks], stage, num_stages), cells_of()
    uses = uses_of(order, cells, passes)
    assert len(uses) < 2 * NUM_MICRO_BATCHES * sum(map(len, CHUNKS[:num_chunks])), "some cells have no replicas"
    moments = [Moment.BACKWARD if use.in_backward else Moment.FORWARD for use in uses]
    assert [order.next_use(*each) for each in zip(uses, moments, strict=True)] == [*uses[1:], None]


def test_S5_no_forward_is_guessed_from_a_backward_where_nobody_sees_the_optimizer_step() -> None:
    order, cells = PassOrder(CHUNKS[:1], sees_optimizer=False), cells_of()
    uses = uses_of(order, cells, TWO_STAGES["plain"][3])
    moments = [Moment.BACKWARD if use.in_backward else Moment.FORWARD for use in uses]
    guesses = [order.next_use(*each) for each in zip(uses, moments, strict=True)]
    follows = zip(uses, [*uses[1:], None], strict=True)
    assert guesses == [None if a.in_backward and b and not b.in_backward else b for a, b in follows]
    assert guesses.count(None) == NUM_MICRO_BATCHES


def test_without_backward_forwards_follow_one_another() -> None:
    order, cells = PassOrder(CHUNKS, 1, 2), cells_of()
    uses = uses_of(order, cells, "F00 F10 F01 F11 F20 F30 F21 F31")
    assert [order.next_use(use, Moment.INFERENCE) for use in uses] == [*uses[1:], None]


def test_after_a_recomputation_comes_its_backward() -> None:
    order, cells = PassOrder(CHUNKS), cells_of()
    for use in uses_of(order, cells, "B0"):
        assert order.next_use(use, Moment.RECOMPUTATION) == use


def test_micro_batches_that_nobody_planned_follow_one_another_as_well() -> None:
    order, cells = PassOrder(CHUNKS[:1]), cells_of()
    uses = uses_of(order, cells, "F4 B4 F5 B5 F6 B6 F7 B7")
    moments = [Moment.BACKWARD if use.in_backward else Moment.FORWARD for use in uses]
    assert [order.next_use(*each) for each in zip(uses, moments, strict=True)] == [*uses[1:], None]


def test_neighbours_fill_different_sides_and_forward_and_backward_the_same_one() -> None:
    """The fetch of a neighbour can then begin while the present weights are used."""
    order, cells = PassOrder(CHUNKS[:1]), cells_of()
    uses = uses_of(order, cells, TWO_STAGES["plain"][3])
    sides = {(use.micro_batch, use.layer): use.side for use in uses}
    assert all(use.side == sides[use.micro_batch, use.layer] for use in uses)
    in_pass = [(a, b) for a, b in itertools.pairwise(uses) if a[1] == b[1] and a.in_backward == b.in_backward]
    assert len(in_pass) > NUM_MICRO_BATCHES
    assert all(a.side != b.side for a, b in in_pass)
    assert uses[0].is_same_cell(uses[0]._replace(in_backward=True))
    assert not any(a.is_same_cell(b) for a, b in in_pass)
    assert not uses[0].is_same_cell(None)
