"""The guess of which weights are wanted next, and the contents of the slots when they are wanted."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.agent.sequential_experts import sequential_experts, value_of
from harness.agent.transport_contract import group_of
from harness.distributed.layout import NODE
from harness.distributed.observed import gathered
from harness.distributed.on_ranks import on_ranks
from harness.distributed.plans import random_plan
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.fetch import Fetcher, Moment, Use, next_use
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.transport import ProcessGroupTransport
from relibra.planning import Cluster, Model
from relibra.planning.places import Placement

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


@on_ranks(NODE)
def test_S5_slots_hold_the_weights_that_are_wanted_whatever_was_guessed(cluster: Cluster) -> None:
    """Run uses in any order, half of them as guessed. Weights change at moments at which training may change them."""
    group, rank, rng, num_micro_batches = group_of(4), dist.get_rank(), np.random.default_rng(11), 4
    model = Model(num_layers=5, num_experts=12, top_k=1)
    plan = random_plan(3, 0, model, cluster, num_micro_batches)
    placement = Placement.identity(model, cluster).with_homes(plan.home_rank_LE)
    cells = StepCells(placement, cluster, ep_group=0, ep_rank=rank, plan=plan, device=torch.device("cpu"))
    experts = {layer: sequential_experts(3) for layer in range(model.num_layers)}

    def write(version: int) -> None:
        for layer, each in experts.items():
            for expert, parameters in zip(placement.expert_of_slot(rank)[layer], each.parameters, strict=True):
                for parameter in parameters:
                    parameter.detach().fill_(value_of(layer, int(expert), version))

    transport = ProcessGroupTransport(group, torch.device("cpu"))
    slots = Slots(experts, cluster.redundant_slots, torch.device("cpu"), with_gradients=False)
    fetcher = Fetcher(transport, slots, experts, {layer: lambda: None for layer in (0, 2)})
    version, num_as_guessed = 0, 0
    guess: Use | None = None
    write(version)
    for turn in range(300):
        micro_batch = int(rng.integers(num_micro_batches))
        layers = cells.layers_with_replicas(micro_batch, range(model.num_layers))
        use = Use(cells, micro_batch, int(rng.choice(layers)), in_backward=bool(rng.integers(2)))
        if guess is not None and rng.random() < 0.5:
            use = guess
            num_as_guessed += 1
        elif rng.random() < 0.2:  # an optimizer step, after which a forward begins
            version += 1
            dist.barrier(group)
            write(version)
            dist.barrier(group)
            use = Use(cells, micro_batch, layers[0], in_backward=False)
        layers = cells.layers_with_replicas(use.micro_batch, range(model.num_layers))
        side = layers.index(use.layer) % NUM_SIDES
        moments = [Moment.RECOMPUTATION, Moment.BACKWARD] if use.in_backward else [Moment.FORWARD, Moment.INFERENCE]
        guess = next_use(use, moments[int(rng.integers(2))], layers)
        if rng.random() < 0.5:
            fetcher.prefetch(use, side, guess)
        fetcher.take(use, side, guess)
        slot_expert_P = cells.table(use.micro_batch, use.layer).slot_expert_P
        for copy in use.copies:
            if copy.destination_rank == rank:
                expert = int(slot_expert_P[rank * 5 + 3 + copy.destination_slot])
                want = value_of(use.layer, expert, version)
                assert all((each == want).all() for each in slots.weights(side, copy.destination_slot, use.layer)), turn
    fetcher.drain()
    assert num_as_guessed > 50
    assert version > 20
    assert set(gathered((num_as_guessed, version))) == {(num_as_guessed, version)}
    assert sum(gathered(transport.sent_bytes)) > 0
