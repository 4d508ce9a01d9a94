"""Scenarios that the four ranks of a node run together. Each returns JSON for its tests."""

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from harness.agent.contract_scenarios import TIMEOUT_S
from harness.agent.emulated_memory import emulated_transport
from harness.distributed.plans import random_plan
from relibra.agent.cells.arrivals import NUM_PARTS, Arrivals
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.fetch import Fetcher, Moment, Use, next_use
from relibra.agent.cells.gradient_return import GradientReturns
from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.experts import SequentialExperts
from relibra.agent.placement import Placement
from relibra.agent.transport import Copy, Fetch, ProcessGroupTransport
from relibra.agent.transport.timed import TimedTransport
from relibra.planning import Cluster, Model

WORLD = 4
Result = dict[str, Any]
CPU = torch.device("cpu")


MODEL = Model(num_layers=5, num_experts=12, top_k=1)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=WORLD, redundant_slots=2)
M = 4
SMALL_BYTES = 2 * 4 * 16
"""Room for two windows, each with 16 bytes of four replicas."""


def value(layer: int, expert: int, version: int) -> float:
    return layer * 100.0 + expert + version * 1000.0


def sequential(num_home: int) -> SequentialExperts:
    module = SimpleNamespace(local_experts=torch.nn.ModuleList(torch.nn.Linear(9, 7) for _ in range(num_home)))
    return SequentialExperts(module)


def random_uses(group: dist.ProcessGroup) -> Result:
    """Run uses in any order, half of them as guessed. Weights change at moments at which training may change them."""
    rank, rng = dist.get_rank(group), np.random.default_rng(11)
    plan = random_plan(3, 0, MODEL, CLUSTER, M)
    placement = Placement.identity(MODEL, CLUSTER).rehomed(plan.home_rank_LE)
    cells = StepCells(placement, CLUSTER, ep_group=0, ep_rank=rank, plan=plan, device=CPU)
    experts = {layer: sequential(num_home=3) for layer in range(MODEL.num_layers)}

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
        elif rng.random() < 0.2:  # an optimizer step, after which a forward begins
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


def gradients(group: dist.ProcessGroup, *, is_symmetric: bool = False) -> Result:
    """Expert 0 of rank 0 has replicas on the three other ranks. Their gradients cancel only if added in one order."""
    rank = dist.get_rank(group)
    transport = emulated_transport(group, TIMEOUT_S) if is_symmetric else ProcessGroupTransport(group)
    copies = (*(Copy(0, 0, peer, 0) for peer in (1, 2, 3)), Copy(1, 0, 2, 1))
    home = [[torch.nn.Parameter(torch.zeros(10, 4, dtype=torch.bfloat16))]]
    cell: Any = mock.Mock(copies=copies, experts=SimpleNamespace(parameters=home), trained=[0])
    mine = {1: [1e8], 2: [1.0, 5.0], 3: [-1e8]}.get(rank, [])
    own = [[torch.full((10, 4), each, dtype=torch.bfloat16)] for each in mine]
    results, arriving = [], []
    for dtype, main_dtype, arriving_bytes, is_early in itertools.product(
        (None, torch.float32), (torch.float32, torch.bfloat16, None), (1 << 20, SMALL_BYTES), (False, True)
    ):
        home[0][0].main_grad = None if main_dtype is None else torch.full((10, 4), 0.25, dtype=main_dtype)
        sent = [[each.to(dtype or each.dtype) for each in of_slot] for of_slot in own]
        memory = Arrivals(transport, [cell.experts], 2, dtype, CPU, arriving_bytes // NUM_PARTS)
        returns = GradientReturns(transport, memory, dtype)
        under_way = returns.start(cell, sent)
        arriving.append(sum(each.nbytes for each in under_way.arrivals))
        if is_early:
            under_way.wait()
        if is_early:  # another cell needs the memory before this one is added up
            noise = [[torch.full_like(each, 7.0) for each in of_slot] for of_slot in sent]
            returns.start(cell, noise).wait()
        parameters = home[0] if rank in (0, 1) else []
        (rest,) = under_way.add_up(parameters) or [None]
        added = home[0][0].main_grad
        results.append([None if each is None else sorted(set(each.flatten().tolist())) for each in (added, rest)])
        under_way.wait()
    return {"main_grad_and_rest": results, "arriving": arriving}


def host_copy(group: dist.ProcessGroup) -> Result:
    """All ranks pull the experts of two layers from the host and from each other, before and after a change."""
    rank, transport = dist.get_rank(group), TimedTransport(ProcessGroupTransport(group))
    experts = {7: sequential(num_home=3), 2: sequential(num_home=2)}
    host = HostCopy(group, transport, experts)
    copies = tuple(Copy(home, slot, (home + 1) % WORLD, slot) for home in range(WORLD) for slot in range(2))
    speeds, wrong, num_pulled = list[float](), 0, 0
    for version in range(2):
        for layer, each in experts.items():
            for slot, parameters in enumerate(each.parameters):
                for parameter in parameters:
                    parameter.detach().fill_(value(layer, 10 * rank + slot, version))
        scratch = [torch.zeros_like(each) for each in experts[2].parameters[0]]
        host.refresh(lambda _, scratch=scratch: scratch)
        for layer, each in experts.items():
            frozen = host.of(layer)
            speeds.append(frozen.speed)
            for speed in (frozen.speed, 0.0, 1e9):  # as measured, from peers alone, and from the host alone
                slots = [[torch.zeros_like(t) for t in each.parameters[0]] for _ in range(2)]
                handles = Fetch.of(
                    transport,
                    copies,
                    lambda slot, each=each: [parameter.detach() for parameter in each.parameters[slot]],
                    slots.__getitem__,
                    frozen._replace(speed=speed),
                ).start()
                for handle in handles:
                    handle.wait()
                num_pulled += len(handles) - 1
                for slot, tensors in enumerate(slots):
                    want = value(layer, 10 * ((rank - 1) % WORLD) + slot, version)
                    wrong += not all(bool((tensor == want).all()) for tensor in tensors)
    asked = list[int]()
    HostCopy(group, transport, {}).refresh(asked.append)
    return {"wrong": wrong, "speeds": speeds, "pulled": num_pulled, "asked_without_layers": asked}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {
    each.__name__: each for each in (random_uses, gradients, host_copy)
} | {"gradients_symmetric": functools.partial(gradients, is_symmetric=True)}
