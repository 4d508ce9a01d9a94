"""The contents of the slots when their weights are wanted."""

import numpy as np
import torch
import torch.distributed as dist

from harness.agent.sequential_experts import sequential_experts, value_of
from harness.agent.transport_contract import group_of
from harness.distributed.layout import NODE
from harness.distributed.observed import gathered
from harness.distributed.on_ranks import on_ranks
from harness.distributed.plans import random_plan
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.pass_order import Moment, PassOrder, Use
from relibra.agent.cells.slots import Slots
from relibra.agent.transport import ProcessGroupTransport
from relibra.planning import Cluster, Model
from relibra.planning.places import Placement


@on_ranks(NODE)
def test_S5_slots_hold_the_weights_that_are_wanted_whatever_was_guessed(cluster: Cluster) -> None:
    """Run uses in any order, half of them as guessed. Weights change at moments at which training may change them."""
    group, rank, rng, num_micro_batches = group_of(4), dist.get_rank(), np.random.default_rng(11), 4
    model, order = Model(num_layers=5, num_experts=12, top_k=1), PassOrder([range(5)], num_stages=2)
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
    version, num_as_guessed, num_on_one_side = 0, 0, 0
    guess: Use | None = None
    write(version)
    for turn in range(300):
        micro_batch = int(rng.integers(num_micro_batches))
        layer = int(rng.choice(cells.layers_with_replicas(micro_batch, range(model.num_layers))))
        use = order.use(cells, micro_batch, layer, in_backward=bool(rng.integers(2)))
        if rng.random() < 0.1:  # an optimizer's step
            version += 1
            fetcher.drain()
            dist.barrier(group)
            write(version)
            dist.barrier(group)
        if guess is not None and rng.random() < 0.5:
            use = guess
            num_as_guessed += 1
        moments = [Moment.RECOMPUTATION, Moment.BACKWARD] if use.in_backward else [Moment.FORWARD, Moment.INFERENCE]
        guess = order.next_use(use, moments[int(rng.integers(2))])
        num_on_one_side += guess is not None and guess.side == use.side and not use.is_same_cell(guess)
        if rng.random() < 0.5:
            fetcher.prefetch(use, guess)
        fetcher.take(use, guess)
        slot_expert_P = cells.table(use.micro_batch, use.layer).slot_expert_P
        for copy in use.copies:
            if copy.destination_rank == rank:
                expert = int(slot_expert_P[rank * 5 + 3 + copy.destination_slot])
                want = value_of(use.layer, expert, version)
                got = slots.weights(use.side, copy.destination_slot, use.layer)
                assert all((each == want).all() for each in got), turn
        if rng.random() < 0.8:  # else the experts failed
            fetcher.leave(use, guess)
    fetcher.drain()
    assert (num_as_guessed > 50, num_on_one_side > 5) == (True, True)
    assert version > 20
    assert set(gathered((num_as_guessed, version))) == {(num_as_guessed, version)}
    assert sum(gathered(transport.sent_bytes)) > 0
