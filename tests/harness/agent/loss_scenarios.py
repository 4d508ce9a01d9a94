"""Scenarios in which a rank is lost, with every transport. Each returns JSON for its tests."""

import os
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from harness.agent.contract_scenarios import SHORT_S, TIMEOUT_S, TRANSPORTS, Result, Room, impatient, message_of
from relibra.agent.transport import ExpertTransport, HostWeights, Parcel, Pull


def hung_and_dead_peer(group: dist.ProcessGroup) -> Result:
    """The last rank does not take part for a while, and then dies while messages to and from it are under way."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    store = dist.distributed_c10d._get_default_store()
    hung = {name: make(group, SHORT_S) for name, make in TRANSPORTS.items()}
    # Symmetric memory outlives its process, so only the timeout tells of a death.
    dead = {name: make(group, SHORT_S if name == "symmetric" else TIMEOUT_S) for name, make in TRANSPORTS.items()}
    rooms = {each: Room.of(each, 4 << 20).tensor(1 << 20) for each in (*hung.values(), *dead.values())}
    # Only the ranks that meet the dead one in a barrier notice at once; the others wait for these ranks.
    hosts = [HostWeights(impatient(group, SHORT_S), [[torch.full((4,), float(rank))]]) for _ in range(2)]
    for host in hosts:
        host.refresh()
    key = f"dead/{dist.get_process_group_ranks(group)}"

    def exchange(transport: ExpertTransport) -> None:
        place = rooms[transport]
        transport.start([Parcel(last, torch.zeros(1 << 20), place)], [Parcel(last, place)]).wait()

    if rank == last:
        store.wait([f"{key}/{each}" for each in range(last)])
        os._exit(0)
    result: Result = {f"hung/{name}": message_of(partial(exchange, each)) for name, each in hung.items()}
    result["hung/host"] = message_of(hosts[0].refresh)
    store.set(f"{key}/{rank}", "")
    began = time.monotonic()
    result |= {f"dead/{name}": message_of(partial(exchange, each)) for name, each in dead.items()}
    result["dead/host"] = message_of(hosts[1].refresh)
    result["in_time"] = time.monotonic() - began < TIMEOUT_S / 2
    pulled = torch.zeros(4)
    hosts[1].start([Pull(last, 0, [pulled])]).wait()
    return result | {"pulled": pulled.tolist(), "peer": last}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {"lost": hung_and_dead_peer}
