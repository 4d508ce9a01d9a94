"""What the four ranks of a node do with each other; each scenario returns what its tests assert on, as JSON."""

import gc
import os
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from plans import random_plans

from relibra.agent.cells import Copy, StepCells
from relibra.agent.experts import SequentialExperts
from relibra.agent.fetch import Fetcher
from relibra.agent.gradient_return import GradientReturn
from relibra.agent.placement import Placement
from relibra.agent.slots import NUM_SIDES, Slots
from relibra.agent.transport import ExpertTransport, Parcel, ProcessGroupTransport
from relibra.agent.uses import Moment, Use, next_use
from relibra.errors import RelibraError
from relibra.planning import Cluster, Model

WORLD = 4
Result = dict[str, Any]
Make = Callable[[dist.ProcessGroup], ExpertTransport]
TRANSPORTS: dict[str, Make] = {"process_group": ProcessGroupTransport}
CPU = torch.device("cpu")
DTYPES = [torch.uint8, torch.bfloat16, torch.float32]


def arrival(group: dist.ProcessGroup, make: Make) -> Result:
    """Random parcels in several calls under way at once, waited for in another order on every rank."""
    rank, rng, own = dist.get_rank(group), np.random.default_rng(5), np.random.default_rng(dist.get_rank(group))
    transport, calls, sent_bytes = make(group), [], 0
    for call in range(12):
        sends, receives = list[Parcel](), list[Parcel]()
        expected = []
        for k in range(int(rng.integers(0, 9))):
            source, destination = (int(each) for each in rng.permutation(WORLD)[:2])
            shape, dtype = tuple(rng.integers(0, 40, 2).tolist()), DTYPES[int(rng.integers(len(DTYPES)))]
            values = torch.full(shape, (7 * call + k) % 200).to(dtype)
            if source == rank:
                sends.append(Parcel(destination, values))
                sent_bytes += values.nbytes
            if destination == rank:
                receives.append(Parcel(source, torch.zeros(shape, dtype=dtype)))
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


def ownership(group: dist.ProcessGroup, make: Make) -> Result:
    """`start` returns before the peer takes part, the handle keeps tensors alive, and nobody does after `wait`."""
    rank, transport, store = dist.get_rank(group), make(group), dist.distributed_c10d._get_default_store()
    peer = rank ^ 1
    if rank % 2:
        store.wait([f"{type(transport)}/started/{peer}"])
    sent = torch.full((1 << 20,), float(rank))
    received = torch.empty(1 << 20)
    handle = transport.start([Parcel(peer, sent)], [Parcel(peer, received)])
    store.set(f"{type(transport)}/started/{rank}", "")
    alive = weakref.ref(sent)
    del sent
    gc.collect()
    is_held = alive() is not None
    handle.wait()
    gc.collect()
    return {"is_held": is_held, "is_let_go": alive() is None, "is_right": bool((received == peer).all())}


def refusal(group: dist.ProcessGroup, make: Make) -> Result:
    try:
        make(group).start([Parcel((dist.get_rank(group) + 1) % WORLD, torch.zeros(4, 4).t()[1:])], [])
    except ValueError as error:
        return {"message": str(error)}
    return {"message": "not refused"}


def dead_peer(group: dist.ProcessGroup, make: Make) -> Result:
    """Rank 3 dies with messages to and from it under way."""
    rank, transport = dist.get_rank(group), make(group)
    if rank == 3:
        os._exit(0)
    try:
        transport.start([Parcel(3, torch.zeros(1 << 20))], [Parcel(3, torch.zeros(1 << 20))]).wait()
    except RelibraError as error:
        return {"message": str(error)}
    return {"message": "not noticed"}


MODEL = Model(num_layers=5, num_experts=12, top_k=1)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=WORLD, redundant_slots=2)
M = 4


def value(layer: int, expert: int, version: int) -> float:
    return layer * 100.0 + expert + version * 1000.0


def random_uses(group: dist.ProcessGroup) -> Result:
    """Uses in any order, half of them as guessed; weights change where training may change them."""
    rank, rng = dist.get_rank(group), np.random.default_rng(11)
    plan = random_plans(3, 0, MODEL, CLUSTER, M)[rank]
    placement = Placement.identity(MODEL, CLUSTER).rehomed(plan.home_rank_LE)
    cells = StepCells(placement, CLUSTER, ep_group=0, ep_rank=rank, plan=plan, device=CPU)
    experts = {
        layer: SequentialExperts(
            SimpleNamespace(local_experts=torch.nn.ModuleList(torch.nn.Linear(9, 7) for _ in range(3)))
        )
        for layer in range(MODEL.num_layers)
    }

    def write(version: int) -> None:
        for layer, each in experts.items():
            for expert, parameters in zip(placement.expert_of_slot(rank)[layer], each.parameters, strict=True):
                for parameter in parameters:
                    parameter.detach().fill_(value(layer, int(expert), version))

    transport = ProcessGroupTransport(group)
    slots = Slots(experts, CLUSTER.redundant_slots, CPU, with_gradients=False)
    fetcher = Fetcher(transport, slots, experts, {layer: lambda: None for layer in experts})
    version, wrong, as_guessed, fetched = 0, [], 0, list[int]()
    guess: Use | None = None
    write(version)
    for turn in range(300):
        micro_batch = int(rng.integers(M))
        layers = cells.replicated(micro_batch, range(MODEL.num_layers))
        use = Use(cells, micro_batch, int(rng.choice(layers)), in_backward=bool(rng.integers(2)))
        if guess is not None and rng.random() < 0.5:
            use = guess
            as_guessed += 1
        elif rng.random() < 0.2:  # an optimizer step; what comes next is a forward from the beginning
            version += 1
            dist.barrier(group)
            write(version)
            dist.barrier(group)
            use = Use(cells, micro_batch, layers[0], in_backward=False)
        layers = cells.replicated(use.micro_batch, range(MODEL.num_layers))
        side = layers.index(use.layer) % NUM_SIDES
        moments = [Moment.RECOMPUTATION, Moment.BACKWARD] if use.in_backward else [Moment.FORWARD, Moment.INFERENCE]
        if rng.random() < 0.5:
            fetcher.prefetch(use, side)
        before = transport.sent_bytes
        guess = next_use(use, moments[int(rng.integers(2))], layers)
        fetcher.take(use, side, guess)
        fetched.append(transport.sent_bytes - before)
        index = [(c, cells.table(use.micro_batch, use.layer).slot_expert_P) for c in use.copies]
        for copy, slot_expert_P in index:
            if copy.destination_rank == rank:
                expert = int(slot_expert_P[rank * 5 + 3 + copy.destination_slot])
                want = value(use.layer, expert, version)
                got = slots.weights(side, copy.destination_slot, use.layer)
                if not all((tensor == want).all() for tensor in got):
                    wrong.append([turn, want, float(got[0].flatten()[0])])
    fetcher.drain()
    return {"wrong": wrong, "as_guessed": as_guessed, "versions": version, "sent": sum(fetched)}


def gradients(group: dist.ProcessGroup) -> Result:
    """Expert 0 of rank 0 has replicas on the three others, whose gradients cancel in one order only."""
    rank = dist.get_rank(group)
    copies = [Copy(0, 0, peer, 0) for peer in (1, 2, 3)] + [Copy(1, 0, 2, 1)]
    home = [[torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))]]
    mine = {1: [1e8], 2: [1.0, 5.0], 3: [-1e8]}.get(rank, [])
    own = [[torch.full((4,), each, dtype=torch.bfloat16)] for each in mine]
    results = []
    for dtype in (None, torch.float32):
        for has_main_grad in (True, False):
            home[0][0].main_grad = torch.full((4,), 0.25) if has_main_grad else None
            sent = [[each.to(dtype or each.dtype) for each in of_slot] for of_slot in own]
            under_way = GradientReturn(ProcessGroupTransport(group), copies, sent, home, dtype)
            parameters = home[0] if rank in (0, 1) else []
            (rest,) = under_way.add_up(parameters) or [None]
            added = home[0][0].main_grad
            results.append([None if each is None else each[0].item() for each in (added, rest)])
            under_way.handle.wait()
    return {"main_grad_and_rest": results}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    **{
        f"{name}/{scenario.__name__}": lambda group, scenario=scenario, make=make: scenario(group, make)
        for name, make in TRANSPORTS.items()
        for scenario in (arrival, ownership, refusal)
    },
    "random_uses": random_uses,
    "gradients": gradients,
    **{f"{name}/dead_peer": lambda group, make=make: dead_peer(group, make) for name, make in TRANSPORTS.items()},
}
