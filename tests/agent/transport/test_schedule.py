"""Waves, relays and the two ways, for any copies."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.agent.cells import Copy, StepCells
from relibra.agent.placement import Placement
from relibra.agent.transport import Links, TransferSchedule, transfer_schedule
from relibra.errors import InvalidInput


@st.composite
def cells(draw: st.DrawFn) -> list[Copy]:
    """At most one copy of an expert on a rank, never at home."""
    num_ranks = draw(st.integers(2, 8))
    homes = st.tuples(st.integers(0, num_ranks - 1), st.integers(0, 3))
    wanted = draw(st.lists(st.tuples(homes, st.integers(0, num_ranks - 1)), unique=True, max_size=24))
    copies, slots = list[Copy](), Counter[int]()
    for (home, slot), rank in sorted(wanted):
        if rank != home:
            copies.append(Copy(home, slot, rank, slots[rank]))
            slots[rank] += 1
    return copies


links = st.builds(
    Links,
    peer_bytes_per_s=st.floats(1, 100),
    host_bytes_per_s=st.none() | st.floats(1, 100),
    relay_from_replicas=st.integers(2, 5),
)


def seconds(plan: TransferSchedule, copies: list[Copy], by: Links) -> float:
    most = max(Counter(copies[i].destination_rank for i in plan.from_host).values(), default=0)
    return max(len(plan.waves) / by.peer_bytes_per_s, most / by.host_bytes_per_s if by.host_bytes_per_s else 0.0)


@settings(max_examples=500)
@given(cells(), links)
def test_every_copy_is_delivered_once_from_who_has_it_without_conflicts(copies: list[Copy], by: Links) -> None:
    plan = transfer_schedule(copies, by, expert_bytes=1)
    delivered = set(plan.from_host)
    by_hops = set[int]()
    for wave in plan.waves:
        assert wave
        assert max(Counter(hop.sender for hop in wave).values()) == 1
        assert max(Counter(copies[hop.copy].destination_rank for hop in wave).values()) == 1
        for hop in wave:
            copy = copies[hop.copy]
            if hop.sent_copy is None:
                assert hop.sender == copy.source_rank
            else:
                passed_on = copies[hop.sent_copy]
                assert hop.sent_copy in by_hops
                assert passed_on[:2] == copy[:2]
                assert hop.sender == passed_on.destination_rank
            assert hop.copy not in delivered
        by_hops |= {hop.copy for hop in wave}
        delivered |= by_hops
    assert delivered == set(range(len(copies)))
    assert by.host_bytes_per_s or not plan.from_host


@given(cells(), links)
def test_both_ways_together_are_never_slower_than_one(copies: list[Copy], by: Links) -> None:
    both = seconds(transfer_schedule(copies, by, 1), copies, by)
    alone = Links(peer_bytes_per_s=by.peer_bytes_per_s, relay_from_replicas=by.relay_from_replicas)
    assert both <= seconds(transfer_schedule(copies, alone, 1), copies, alone)
    if by.host_bytes_per_s:
        most = max(Counter(copy.destination_rank for copy in copies).values(), default=0)
        assert both <= most / by.host_bytes_per_s


@given(cells())
def test_without_relays_waves_stay_below_twice_the_busiest_rank(copies: list[Copy]) -> None:
    plan = transfer_schedule(copies, Links(peer_bytes_per_s=1.0, relay_from_replicas=99), 1)
    sent = max(Counter(copy.source_rank for copy in copies).values(), default=0)
    received = max(Counter(copy.destination_rank for copy in copies).values(), default=0)
    assert max(sent, received) <= len(plan.waves) <= max(0, sent + received - 1)


@pytest.mark.parametrize(("relay_from", "num_waves"), [(99, 7), (4, 3)])
def test_a_relay_brings_an_expert_to_seven_others_in_three_waves(relay_from: int, num_waves: int) -> None:
    copies = [Copy(0, 0, rank, 0) for rank in range(1, 8)]
    plan = transfer_schedule(copies, Links(peer_bytes_per_s=1.0, relay_from_replicas=relay_from), 1)
    assert len(plan.waves) == num_waves


def test_what_the_host_takes_ends_with_what_peers_bring() -> None:
    copies = [Copy(0, slot, 1, slot) for slot in range(6)]
    plan = transfer_schedule(copies, Links(peer_bytes_per_s=2.0, host_bytes_per_s=1.0), 1)
    assert (len(plan.waves), len(plan.from_host)) == (4, 2)


@given(st.data(), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_S1_all_ranks_of_a_node_find_the_same_schedule(some, data: st.DataObject, seed: int) -> None:
    model, cluster = data.draw(some.shapes)
    rng, by = np.random.default_rng(seed), data.draw(links)
    plan, _ = some.plan(rng, model, cluster, num_micro_batches=2)
    placement = Placement.identity(model, cluster).rehomed(plan.home_rank_LE)
    for layer in range(model.num_layers):
        found = set()
        for rank in range(cluster.gpus_per_node):
            own = StepCells(placement, cluster, ep_group=0, ep_rank=rank, plan=plan, device=torch.device("cpu"))
            found.add(transfer_schedule(own.copies(0, layer), by, 1))
        assert len(found) == 1


@pytest.mark.parametrize("wrong", [{"peer_bytes_per_s": 0.0}, {"host_bytes_per_s": -1.0}, {"relay_from_replicas": 1}])
def test_links_that_cannot_be_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Links(**{"peer_bytes_per_s": 1.0} | wrong)
