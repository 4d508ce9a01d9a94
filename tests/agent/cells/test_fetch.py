"""The guess of which weights are wanted next, and the contents of the slots when they are wanted."""

import pytest
import torch

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.fetch import Moment, Use, next_use
from relibra.agent.placement import Placement
from relibra.planning import Cluster, Model

CLUSTER = Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=0)
PLACEMENT = Placement.identity(Model(num_layers=8, num_experts=1, top_k=1), CLUSTER)
CELLS = StepCells(PLACEMENT, CLUSTER, ep_group=0, ep_rank=0, plan=None, device=torch.device("cpu"))
LAYERS = [1, 4, 6]
"""The layers of the chunk that have replicas."""


def use(layer: int, *, in_backward: bool = False, micro_batch: int = 3) -> Use:
    return Use(CELLS, micro_batch, layer, in_backward)


@pytest.mark.parametrize(
    ("present", "moment", "following"),
    [
        (use(1), Moment.FORWARD, use(4)),
        (use(4), Moment.INFERENCE, use(6)),
        (use(6), Moment.FORWARD, use(6, in_backward=True)),
        (use(6), Moment.INFERENCE, None),
        (use(4, in_backward=True), Moment.RECOMPUTATION, use(4, in_backward=True)),
        (use(6, in_backward=True), Moment.BACKWARD, use(4, in_backward=True)),
        (use(1, in_backward=True), Moment.BACKWARD, None),
    ],
)
def test_the_next_use_of_a_micro_batch(present: Use, moment: Moment, following: Use | None) -> None:
    assert next_use(present, moment, LAYERS) == following


def test_one_micro_batch_after_the_other_is_guessed_but_for_its_first_layer() -> None:
    done = [(use(layer), Moment.FORWARD) for layer in LAYERS]
    done += [(use(layer, in_backward=True), Moment.BACKWARD) for layer in reversed(LAYERS)]
    guesses = [next_use(present, moment, LAYERS) for present, moment in done]
    assert guesses == [present for present, _ in done[1:]] + [None]


def test_S5_a_forward_is_never_guessed_from_a_backward_nor_across_micro_batches() -> None:
    """Weights may change between a backward and the next forward."""
    for moment in Moment:
        for layer in LAYERS:
            present = use(layer, in_backward=moment in (Moment.RECOMPUTATION, Moment.BACKWARD))
            guess = next_use(present, moment, LAYERS)
            assert guess is None or guess.micro_batch == present.micro_batch
            assert guess is None or guess.in_backward or not present.in_backward


@pytest.mark.distributed
def test_S5_slots_hold_the_weights_that_are_wanted_whatever_was_guessed(node_run):
    results = node_run("random_uses")
    for result in results:
        assert result["wrong"] == []
        assert result["as_guessed"] > 50
        assert result["versions"] > 20
    assert len({(result["as_guessed"], result["versions"]) for result in results}) == 1
    assert sum(result["sent"] for result in results) > 0
