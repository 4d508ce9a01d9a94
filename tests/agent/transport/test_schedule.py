"""Rounds, relays and the two ways, for any copies."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.agent.transfer_cells import transfer_cells
from harness.distributed.plans import random_plan
from relibra.agent.cells.cells import StepCells
from relibra.agent.transport import Copy, TransferSchedule, peers_by_round, transfer_schedule
from relibra.planning.places import Placement

speeds = st.just(0.0) | st.floats(0.01, 100)


def lasts(plan: TransferSchedule, copies: tuple[Copy, ...], host_speed: float) -> float:
    """Return the time of a schedule, in rounds."""
    most = max(Counter(copies[i].destination_rank for i in plan.from_host).values(), default=0)
    return max(len(plan.rounds), most / host_speed if most else 0.0)


@settings(max_examples=500)
@given(transfer_cells(), st.booleans(), speeds)
def test_every_copy_is_delivered_once_from_who_has_it_without_conflicts(
    copies: tuple[Copy, ...], relays: bool, host_speed: float
) -> None:
    plan = transfer_schedule(copies, relays=relays, host_speed=host_speed)
    delivered = set(plan.from_host)
    by_hops = set[int]()
    for hops in plan.rounds:
        assert hops
        assert max(Counter(hop.sender for hop in hops).values()) == 1
        assert max(Counter(copies[hop.copy].destination_rank for hop in hops).values()) == 1
        for hop in hops:
            copy = copies[hop.copy]
            if hop.sent_copy is None:
                assert hop.sender == copy.source_rank
            else:
                assert relays
                passed_on = copies[hop.sent_copy]
                assert hop.sent_copy in by_hops
                assert passed_on[:2] == copy[:2]
                assert hop.sender == passed_on.destination_rank
            assert hop.copy not in delivered
        by_hops |= {hop.copy for hop in hops}
        delivered |= by_hops
    assert delivered == set(range(len(copies)))
    assert [hop for hops in plan.rounds for hop in hops] == list(plan.hops)
    assert host_speed or not plan.from_host


@given(transfer_cells(), st.booleans(), speeds)
def test_both_ways_together_are_never_slower_than_one(
    copies: tuple[Copy, ...], relays: bool, host_speed: float
) -> None:
    both = lasts(transfer_schedule(copies, relays=relays, host_speed=host_speed), copies, host_speed)
    assert both <= len(transfer_schedule(copies, relays=relays).rounds)
    if host_speed:
        assert both <= max(Counter(copy.destination_rank for copy in copies).values(), default=0) / host_speed


@given(transfer_cells())
def test_without_relays_rounds_stay_below_twice_the_busiest_rank(copies: tuple[Copy, ...]) -> None:
    plan = transfer_schedule(copies, relays=False)
    sent = max(Counter(copy.source_rank for copy in copies).values(), default=0)
    received = max(Counter(copy.destination_rank for copy in copies).values(), default=0)
    assert max(sent, received) <= len(plan.rounds) <= max(0, sent + received - 1)


@pytest.mark.parametrize(("relays", "num_rounds"), [(False, 7), (True, 3)])
def test_a_relay_brings_an_expert_to_seven_others_in_three_rounds(relays: bool, num_rounds: int) -> None:
    plan = transfer_schedule(tuple(Copy(0, 0, rank, 0) for rank in range(1, 8)), relays=relays)
    assert len(plan.rounds) == num_rounds


def test_what_the_host_takes_ends_with_what_peers_bring() -> None:
    plan = transfer_schedule(tuple(Copy(0, slot, 1, slot) for slot in range(6)), relays=True, host_speed=0.5)
    assert (len(plan.rounds), len(plan.from_host)) == (4, 2)


@given(st.integers(1, 9))
def test_in_rounds_all_ranks_exchange_with_each_other_once_and_none_is_met_by_two(num_ranks: int) -> None:
    of_ranks = [peers_by_round(rank, num_ranks) for rank in range(num_ranks)]
    for rank, own in enumerate(of_ranks):
        assert sorted(ahead for ahead, _ in own) == [other for other in range(num_ranks) if other != rank]
    for at_once in zip(*of_ranks, strict=True):
        assert sorted(ahead for ahead, _ in at_once) == list(range(num_ranks))
        assert all(at_once[ahead][1] == rank for rank, (ahead, _) in enumerate(at_once))


@given(st.data(), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_S1_all_ranks_of_a_node_find_the_same_schedule(data: st.DataObject, seed: int) -> None:
    model, cluster = data.draw(shapes())
    plan = random_plan(seed, 0, model, cluster, 2)
    placement = Placement.identity(model, cluster).with_homes(plan.home_rank_LE)
    for layer in range(model.num_layers):
        found = set()
        for rank in range(cluster.gpus_per_node):
            own = StepCells(placement, cluster, ep_group=0, ep_rank=rank, plan=plan, device=torch.device("cpu"))
            transfer_schedule.cache_clear()
            found.add(transfer_schedule(own.copies(0, layer), relays=True, host_speed=0.7))
        assert len(found) == 1
