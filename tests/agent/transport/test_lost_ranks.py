import os
import time

import pytest
import torch
import torch.distributed as dist

from harness.agent.parcels import Parcel, start
from harness.agent.transport_contract import SHORT_S, TIMEOUT_S, TRANSPORTS, Room, group_of, impatient
from harness.distributed.layout import NODE
from harness.distributed.ranks import Ranks
from relibra.agent.transport import HostWeights, Pull
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.errors import RelibraError
from relibra.planning import Cluster


def test_L1_a_rank_that_waits_long_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    deadline_s = time.monotonic() + 30.0
    with noticing_death("agreeing on a plan", patience_s=0.01):
        while not caplog.records and time.monotonic() < deadline_s:
            time.sleep(0.01)
    (record,) = caplog.records
    assert record.getMessage().startswith("agreeing on a plan: this rank has waited 0.01 s for other ranks")


def test_L1_the_error_of_a_collective_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RelibraError, match=r"agreeing on a plan: .*: connection closed; look for the rank that died"):
        fail()
    assert not caplog.records


def fail() -> None:
    with noticing_death("agreeing on a plan"):
        raise RuntimeError("connection closed")


@pytest.mark.distributed
@pytest.mark.parametrize("world", [4, pytest.param(2, marks=pytest.mark.long)])
def test_L1_a_peer_that_hangs_or_dies_is_named_in_time_and_its_weights_are_still_there(
    ranks: Ranks, world: int
) -> None:
    survivors = ranks.run(NODE, lose_the_last, may_die=True, world=world)
    assert survivors == ([True] * (world - 1) + [None]) * (4 // world)


def lose_the_last(_: Cluster, *, world: int) -> bool:
    """The last rank does not take part for a while, and then dies while messages to and from it are under way."""
    group, store = group_of(world), dist.distributed_c10d._get_default_store()
    rank, last, key = dist.get_rank(group), world - 1, f"dead/{dist.get_rank() // world}"
    hung = {name: make(group, SHORT_S) for name, make in TRANSPORTS.items()}
    # Symmetric memory outlives its process, so only the timeout tells of a death.
    dead = {name: make(group, SHORT_S if name == "symmetric" else TIMEOUT_S) for name, make in TRANSPORTS.items()}
    rooms = {each: Room.of(each, 4 << 20).tensor(1 << 20) for each in (*hung.values(), *dead.values())}
    # Only the ranks that meet the dead one in a barrier notice at once; the others wait for these ranks.
    hosts = [HostWeights(impatient(group, SHORT_S), [[torch.full((4,), float(rank))]]) for _ in range(2)]
    for host in hosts:
        host.refresh()

    def assert_given_up(transports: dict[str, object], host: HostWeights) -> None:
        """The ranks give up on a hanging rank after the timeout."""
        for transport in transports.values():
            place = rooms[transport]
            with pytest.raises(RelibraError) as refused:
                start(transport, [Parcel(last, torch.zeros(1 << 20), place)], [Parcel(last, place)]).wait()
            text = str(refused.value)
            assert text.startswith(f"ranks [{last}] of the group did not send or take experts in time")
            assert text.endswith("restart from the last checkpoint")
        with pytest.raises(RelibraError, match=r"^the host copy of weights: not all ranks took part in time"):
            host.refresh()

    if rank == last:
        store.wait([f"{key}/{each}" for each in range(last)])
        os._exit(0)
    assert_given_up(hung, hosts[0])
    store.set(f"{key}/{rank}", "")
    began_s = time.monotonic()
    assert_given_up(dead, hosts[1])
    assert time.monotonic() - began_s < TIMEOUT_S / 2
    pulled = torch.zeros(4)
    hosts[1].start([Pull(last, 0, [pulled])]).wait()
    assert pulled.tolist() == [float(last)] * 4
    return True
