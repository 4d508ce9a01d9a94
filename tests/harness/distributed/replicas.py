"""Scenarios that measure the memory of replicas, what stays behind, and whether they travel beside computation."""

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from harness.distributed.gpt_model import RECOMPUTE
from harness.distributed.matrix import EXPERTS, balanced_job, num_micro_batches
from relibra.agent import Phase
from relibra.agent.cells.fetch import Fetcher, Use
from relibra.agent.cells.gradient_return import GradientReturn, GradientReturns
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.cells.slots import NUM_SIDES
from relibra.agent.cells.visit import Visit
from relibra.kernels import packed_size_bytes
from relibra.planning import Cluster

Result = dict[str, Any]
NUM_LOOKS = 5


def live_bytes() -> int:
    """Return the memory of all tensors that Python knows, each storage once."""
    gc.collect()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if isinstance(each, torch.Tensor)
    }
    return sum(storages.values())


def settled_bytes() -> int:
    """Return `live_bytes` once several calls in a row agree, because other threads may briefly hold a tensor."""
    looks = [live_bytes()]
    while len(looks) < NUM_LOOKS or len(set(looks[-NUM_LOOKS:])) > 1:
        looks.append(live_bytes())
    return looks[-1]


def memory(cluster: Cluster) -> Result:
    """Return the memory of slots by formula, as the agent reports it, and as attaching allocates it."""
    job, _ = balanced_job(cluster)
    agent = job.agent
    assert agent is not None
    one = packed_size_bytes(agent.layers[min(agent.layers)].experts.parameters[0])
    slots = agent._context.slots
    allocated = slots._weights.untyped_storage().nbytes() + slots._gradients.untyped_storage().nbytes()
    agent.detach()
    return {
        "computed": NUM_SIDES * cluster.redundant_slots * one,
        "reported": agent.slot_bytes,
        "allocated": allocated,
    }


def returning(cluster: Cluster, *, experts: dict[str, Any]) -> Result:
    """Measure the memory of gradients beside the slots in a step: at their homes, and where autograd makes them."""
    job, _ = balanced_job(cluster, **experts)
    agent = job.agent
    assert agent is not None
    plain, alive, largest, homes = GradientReturns.start, list[weakref.ref[torch.Tensor]](), [0], [0]
    slots = agent._context.slots._gradients.untyped_storage().data_ptr()

    def start(self: GradientReturns, cell: ReplicatedCell, own: Sequence[Sequence[torch.Tensor]]) -> GradientReturn:
        started = plain(self, cell, own)
        leaving = [each for of_slot in own for each in of_slot]
        alive.extend(weakref.ref(each) for each in leaving if each.untyped_storage().data_ptr() != slots)
        homes.append(self._arrivals.size_bytes)
        largest.append(homes[-1] + sum(each.nbytes for ref in alive if (each := ref()) is not None))
        return started

    with mock.patch.object(GradientReturns, "start", start):
        agent.begin_step(0, Phase.UPDATE)
        job.run(0, num_micro_batches())
        agent.end_step()
    said, kept = agent.gradient_bytes, agent._context.returns._arrivals.size_bytes
    agent.detach()
    return {"said": said, "kept": kept, "largest": max(largest), "largest_at_home": max(homes)}


def abandoned(cluster: Cluster) -> Result:
    """Run forwards without a backward, and one that fails. A step after them must end as a step before them.

    Megatron's dispatchers hold the graph of their last forward, so the same step is compared.
    """
    job, _ = balanced_job(cluster)
    agent = job.agent
    assert agent is not None

    def fail(*_: Any) -> None:
        raise MemoryError("injected")

    def train() -> tuple[int, int, list[float]]:
        agent.begin_step(0, Phase.UPDATE)
        losses = job.run(0, num_micro_batches())
        agent.end_step()
        gc.collect()
        return settled_bytes(), Counter(type(each) for each in gc.get_objects())[Visit], losses

    train()
    before, failures = train(), 0
    for _ in range(3):
        agent.begin_step(0, Phase.RECOMPUTE)
        job.run(0, num_micro_batches(), forward_only=True)
    agent.begin_step(0, Phase.UPDATE)
    handle = list(job.moe_layers.values())[1].experts.register_forward_hook(fail)
    try:
        job.run(0, num_micro_batches())
    except MemoryError:
        failures += 1
    handle.remove()
    agent.end_step()
    after = train()
    agent.detach()
    return {"failures": failures, "before": before, "after": after}


def in_time(cluster: Cluster) -> Result:
    """Count the uses whose fetch had begun in advance, and the others, for each kind of recomputation."""
    plain, counts = Fetcher.take, dict[str, Counter[str]]()

    for way, options in RECOMPUTE.items():
        count = counts[way] = Counter[str]()

        def take(self: Fetcher, use: Use, side: int, following: Use | None, count: Counter[str] = count) -> None:
            count["begun" if self._expected == use else "late"] += 1
            plain(self, use, side, following)

        job, _ = balanced_job(cluster, **options)
        assert job.agent is not None
        with mock.patch.object(Fetcher, "take", take):
            job.agent.begin_step(0, Phase.UPDATE)
            job.run(0, num_micro_batches())
        job.agent.detach()
    return {way: dict(count) for way, count in counts.items()}


def beside_attention(cluster: Cluster) -> Result:
    """Return the order of events in a backward: sending gradients, attention, and adding gradients up."""
    job, _ = balanced_job(cluster)
    assert job.agent is not None
    events: list[str] = []

    def noting(event: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            events.append(event)
            return plain(*args)

        return note

    attentions = [layer.self_attention for layer in job.models[0].decoder.layers]
    handles = [each.register_full_backward_hook(lambda *_: events.append("attention")) for each in attentions]
    with (
        mock.patch.object(Visit, "send_gradients", noting("set out", Visit.send_gradients)),
        mock.patch.object(GradientReturn, "add_up", noting("added up", GradientReturn.add_up)),
    ):
        job.agent.begin_step(0, Phase.UPDATE)
        job.run(0, 1)
    for handle in handles:
        handle.remove()
    job.agent.detach()
    return {"events": events}


RETURNING: dict[str, dict[str, Any]] = {"autograd": {}, "fused": EXPERTS["fused"]}
SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    each.__name__: each for each in (memory, abandoned, in_time, beside_attention)
} | {f"returning_{name}": functools.partial(returning, experts=RETURNING[name]) for name in RETURNING}
