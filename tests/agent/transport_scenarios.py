"""What ranks do with each transport, four at a time and two at a time; each scenario returns JSON for its tests."""

import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from relibra.agent.cells import Copy
from relibra.agent.transport import (
    ExpertTransport,
    HostWeights,
    Links,
    Parcel,
    PeerTransport,
    ProcessGroupTransport,
    Pull,
    transfer_schedule,
)
from relibra.agent.transport.engine import Engine
from relibra.agent.transport.shared_memory import exchange_descriptors
from relibra.errors import RelibraError

CPU = torch.device("cpu")
TIMEOUT_S = 20.0
SHORT_S = 0.3
DTYPES = [torch.uint8, torch.bfloat16, torch.float32]
Result = dict[str, Any]
Make = Callable[[dist.ProcessGroup, float], ExpertTransport]


def process_group(group: dist.ProcessGroup, timeout_s: float) -> ExpertTransport:
    ranks = dist.get_process_group_ranks(group)
    own = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), use_local_synchronization=True)
    return ProcessGroupTransport(own)


def peer(group: dist.ProcessGroup, timeout_s: float) -> ExpertTransport:
    return PeerTransport(group, CPU, timeout_s)


TRANSPORTS: dict[str, Make] = {"process_group": process_group, "peer": peer}


def message_of(action: Callable[[], object]) -> str:
    try:
        action()
    except (RelibraError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def arrival(make: Make, group: dist.ProcessGroup) -> Result:
    """Random parcels in several calls under way at once, waited for in another order on every rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    rng, own = np.random.default_rng(5), np.random.default_rng(rank)
    transport, calls, sent_bytes = make(group, TIMEOUT_S), [], 0
    for call in range(12):
        sends, receives = list[Parcel](), list[Parcel]()
        expected = []
        for k in range(int(rng.integers(0, 9))):
            source, destination = (int(each) for each in rng.permutation(world)[:2])
            # Now and then larger than all that is under way at a time.
            shape = (int(rng.integers(1, 4)) << 20,) if rng.random() < 0.1 else tuple(rng.integers(0, 40, 2).tolist())
            values = torch.full(shape, (7 * call + k) % 200).to(DTYPES[int(rng.integers(len(DTYPES)))])
            if source == rank:
                sends.append(Parcel(destination, values))
                sent_bytes += values.nbytes
            if destination == rank:
                receives.append(Parcel(source, torch.zeros_like(values)))
                expected.append(values)
        calls.append((transport.start(sends, receives), receives, expected))
    for i in own.permutation(len(calls)):
        calls[i][0].wait()
        calls[i][0].wait()
    wrong = [
        call
        for call, (_, receives, expected) in enumerate(calls)
        if not all(torch.equal(parcel.tensor, want) for parcel, want in zip(receives, expected, strict=True))
    ]
    return {"wrong": wrong, "counted": transport.sent_bytes == sent_bytes, "num": sum(len(e) for _, _, e in calls)}


def ownership(make: Make, group: dist.ProcessGroup) -> Result:
    """`start` returns before the peer takes part, the handle keeps tensors alive, and nobody does after `wait`."""
    rank, transport, store = dist.get_rank(group), make(group, TIMEOUT_S), dist.distributed_c10d._get_default_store()
    peer, name = rank ^ 1, f"{make}/{dist.get_process_group_ranks(group)}"
    if rank % 2:
        store.wait([f"{name}/{peer}"])
    sent = torch.full((1 << 20,), float(rank))
    received = torch.empty(1 << 20)
    handle = transport.start([Parcel(peer, sent)], [Parcel(peer, received)])
    store.set(f"{name}/{rank}", "")
    alive = weakref.ref(sent)
    del sent
    gc.collect()
    is_held = alive() is not None
    handle.wait()
    gc.collect()
    return {"is_held": is_held, "is_let_go": alive() is None, "is_right": bool((received == peer).all())}


def refusal(make: Make, group: dist.ProcessGroup) -> Result:
    transport, peer = make(group, TIMEOUT_S), (dist.get_rank(group) + 1) % dist.get_world_size(group)
    return {"message": message_of(lambda: transport.start([Parcel(peer, torch.zeros(4, 4).t()[1:])], []))}


def reuse(make: Make, group: dist.ProcessGroup) -> Result:
    """A slot that is being filled is refused to everything else, and free again after the wait."""
    transport, peer = make(group, TIMEOUT_S), dist.get_rank(group) ^ 1
    slot, other = torch.zeros(16), torch.zeros(4)
    first = transport.start([Parcel(peer, torch.ones(16))], [Parcel(peer, slot)])
    messages = [
        message_of(lambda: transport.start([], [Parcel(peer, slot[4:8])])),
        message_of(lambda: transport.start([Parcel(peer, slot[4:8])], [])),
        message_of(lambda: transport.start([], [Parcel(peer, other), Parcel(peer, other)])),
    ]
    first.wait()
    transport.start([Parcel(peer, torch.full((16,), 2.0))], [Parcel(peer, slot)]).wait()
    return {"messages": messages, "is_right": bool((slot == 2).all())}


def wrong_size(make: Make, group: dist.ProcessGroup) -> Result:
    transport, peer = make(group, TIMEOUT_S), dist.get_rank(group) ^ 1
    handle = transport.start([Parcel(peer, torch.zeros(8))], [Parcel(peer, torch.zeros(6))])
    message = message_of(handle.wait)
    dist.barrier(group)  # who drops the transport first is gone to the others
    return {"message": message}


def settle() -> None:
    """Return when the threads of dropped transports have ended."""
    gc.collect()
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(isinstance(thread, Engine) for thread in threading.enumerate()) and time.monotonic() < deadline_s:
        time.sleep(0)
    gc.collect()


def ended(make: Make, group: dist.ProcessGroup) -> Result:
    """A transport that is dropped ends its thread and gives its descriptors and memory back."""

    def held() -> tuple[int, int]:
        own = Path("/proc/self")
        return len(list((own / "fd").iterdir())), (own / "maps").read_text().count("relibra")

    settle()
    before = held()
    transport = make(group, TIMEOUT_S)
    during = held()
    dist.barrier(group)
    del transport
    settle()
    deadline_s = time.monotonic() + TIMEOUT_S
    while held() != before and time.monotonic() < deadline_s:
        gc.collect()
    return {"before": before, "during": during, "after": held()}


def unreachable(group: dist.ProcessGroup) -> Result:
    """Rank 1 offers what nobody can open; all ranks say so together, and give back what they opened."""
    settle()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.socket() as closed, Path("/dev/null").open() as fine:
        own = closed.fileno() if dist.get_rank(group) == 1 else fine.fileno()
        message = message_of(lambda: exchange_descriptors([own] * dist.get_world_size(group), os.O_RDONLY, group))
    return {"message": message, "num_leaked": len(list(Path("/proc/self/fd").iterdir())) - before}


def hung_and_dead_peer(group: dist.ProcessGroup) -> Result:
    """The last rank does not take part for a while, and then dies with messages to and from it under way."""
    rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
    store = dist.distributed_c10d._get_default_store()
    hung = {name: make(group, SHORT_S) for name, make in TRANSPORTS.items()}
    dead = {name: make(group, TIMEOUT_S) for name, make in TRANSPORTS.items()}
    host = HostWeights(group, [[torch.full((4,), float(rank))]])
    host.refresh()
    key = f"dead/{dist.get_process_group_ranks(group)}"

    def exchange(transport: ExpertTransport) -> None:
        transport.start([Parcel(last, torch.zeros(1 << 20))], [Parcel(last, torch.zeros(1 << 20))]).wait()

    if rank == last:
        store.wait([f"{key}/{each}" for each in range(last)])
        os._exit(0)
    result: Result = {f"hung/{name}": message_of(partial(exchange, each)) for name, each in hung.items()}
    store.set(f"{key}/{rank}", "")
    began = time.monotonic()
    result |= {f"dead/{name}": message_of(partial(exchange, each)) for name, each in dead.items()}
    result["in_time"] = time.monotonic() - began < TIMEOUT_S / 2
    pulled = torch.zeros(4)
    host.start([Pull(last, 0, [pulled])]).wait()
    return result | {"pulled": pulled.tolist(), "dead/host": message_of(host.refresh)}


def host_pulls(group: dist.ProcessGroup) -> Result:
    """Every rank takes what it wants from whom it wants, and sees a change only after a refresh."""
    rank, world, rng = dist.get_rank(group), dist.get_world_size(group), np.random.default_rng(dist.get_rank(group))

    def value(peer: int, expert: int, version: int) -> float:
        return peer * 100.0 + expert + 1000.0 * version

    shapes = [[((3, 5), torch.bfloat16), ((7,), torch.float32)], [((2,), torch.bfloat16)]] * 4
    experts = [[torch.zeros(shape, dtype=dtype) for shape, dtype in each] for each in shapes]
    host = HostWeights(group, experts)
    empty, wrong = message_of(lambda: host.start([])), 0
    for version in range(5):
        for i, each in enumerate(experts):
            for tensor in each:
                tensor.fill_(value(rank, i, version))
        host.refresh()
        for _ in range(20):
            pulls = [
                Pull(int(rng.integers(world)), i, [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes[i]])
                for i in rng.integers(len(shapes), size=3).tolist()
            ]
            handle = host.start(pulls)
            handle.wait()
            handle.wait()
            for pull in pulls:
                want = value(pull.peer, pull.expert, version)
                wrong += not all(torch.equal(t, torch.full_like(t, want)) for t in pull.into)
    slot = torch.zeros(2, dtype=torch.bfloat16)
    under_way = host.start([Pull(0, 1, [slot])])
    messages = {
        "empty": empty,
        "size": message_of(lambda: host.start([Pull(0, 1, [torch.zeros(3, dtype=torch.bfloat16)])])),
        "reuse": message_of(lambda: host.start([Pull(0, 1, [slot])])),
        "early": message_of(host.refresh),
    }
    under_way.wait()
    host.refresh()
    return {"wrong": wrong, **messages}


def scheduled(make: Make, group: dist.ProcessGroup) -> Result:
    """Random schedules, hop by hop, each rank knowing only the copies of the cell."""
    rank, world, rng = dist.get_rank(group), dist.get_world_size(group), np.random.default_rng(3)
    transport, num_wrong, num_relayed, num_copies = make(group, TIMEOUT_S), 0, 0, 0
    for turn in range(200):
        copies, slots = list[Copy](), [0] * world
        for home in range(world):
            for slot in range(2):
                for destination in rng.permutation(world)[: int(rng.integers(0, world))].tolist():
                    if destination != home:
                        copies.append(Copy(home, slot, destination, slots[destination]))
                        slots[destination] += 1
        plan = transfer_schedule(copies, Links(peer_bytes_per_s=1.0, relay_from_replicas=2), 1)
        held = [torch.zeros(5) for _ in range(slots[rank])]
        for wave in plan.waves:
            sends, receives = list[Parcel](), list[Parcel]()
            for hop in wave:
                copy = copies[hop.copy]
                if hop.sender == rank:
                    own = torch.full((5,), float(turn * 100 + rank * 10 + copy.source_slot))
                    source = own if hop.sent_copy is None else held[copies[hop.sent_copy].destination_slot]
                    sends.append(Parcel(copy.destination_rank, source))
                if copy.destination_rank == rank:
                    receives.append(Parcel(hop.sender, held[copy.destination_slot]))
                num_relayed += hop.sent_copy is not None
            transport.start(sends, receives).wait()
        for copy in copies:
            if copy.destination_rank == rank:
                want = turn * 100 + copy.source_rank * 10 + copy.source_slot
                num_wrong += not bool((held[copy.destination_slot] == want).all())
        num_copies += len(copies)
    return {"wrong": num_wrong, "relayed": num_relayed, "copies": num_copies}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    **{
        f"{name}/{scenario.__name__}": partial(scenario, make)
        for name, make in TRANSPORTS.items()
        for scenario in (arrival, ownership, refusal, reuse)
    },
    "peer/wrong_size": partial(wrong_size, peer),
    "peer/ended": partial(ended, peer),
    "peer/scheduled": partial(scheduled, peer),
    "peer/unreachable": unreachable,
    "host": host_pulls,
}
LAST = {"lost": hung_and_dead_peer}
