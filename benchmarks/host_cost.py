"""The host's time for the agent in one MoE layer, per micro-batch: what it costs to prepare the work of a GPU.

    python -m benchmarks.host_cost [--cells 2000]

One process plays one rank of a node of eight. A cell is one layer with tiny tensors, which runs forward without a
backward, as a step computes probabilities before its update, and then forward and backward. The agent's own code runs,
and everything around it is replaced by as little as possible. Experts are one autograd function, transfers go nowhere,
and the CUDA driver is one that counts calls and returns (`driver_stub`). So what is left of the time is the host's,
with neither computation nor transfers, and without the driver's few microseconds per call. The time is that of the
processor, and the tenth percentile of all turns, because other work on the machine only adds to it.

- *Plain* is the same layer without the agent, and its time is subtracted.
- Forwards are cut into the stages of `benchmarks.host_layer`, and a figure of a stage is the mean of both forwards. The
  agent has no code in the stage *dispatch*, from the host's wait for splits to the launch of dispatch.
- *Operations* are those that torch's dispatcher counts: on a GPU, most of them are launches. *Kernels* are relibra's.
  *Other calls* of the driver queue copies, words and events.
- A replicated cell has 14 replicas of two experts in this node. One replica is on this rank, and seven are of an expert
  whose home this rank is. Gradients return.
- *First time*: the cell has not run before in this step, so the time includes working out what follows from the plan
  alone, as in the three passes over every cell of a step. All other cases run cells that ran before, as in a
  recomputation of activations.
- *Counts ahead*: a replay tells the routing, so that counts are gathered once for all cells.
- *Symmetric memory*: that transport queues its copies and signals.

The title of the table has the time of a small operation (`torch.empty(1).add_(1)`), which says how fast the core is.

Writes `benchmarks/results/host_cost.json`.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.driver_stub import StubDriver
from benchmarks.host_stand_ins import NUM_RANKS, Nowhere, StubMemory, TinyExperts
from benchmarks.laps import WARM_UPS, Laps, Operations, small_operation_us
from benchmarks.results import show, write
from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.counts_ahead import CountsAhead
from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.gradient_return import GradientReturns
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.micro_batch import MicroBatch, RealisedLoad, running
from relibra.agent.cells.pass_order import PassOrder
from relibra.agent.cells.replay import MicroBatchReplay
from relibra.agent.cells.slots import Slots
from relibra.agent.cells.token_split import TokenSplit
from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.transport import ExpertTransport, SymmetricTransport, transfer_schedule
from relibra.agent.transport.symmetric_memory import SymmetricMemory
from relibra.agent.transport.timed import TimedTransport
from relibra.kernels import ops
from relibra.kernels.driver import Device
from relibra.planning import Cluster, Model, PlanId, Replicas, StepPlan
from relibra.planning.places import Placement
from relibra.planning.plan import Level

CPU = torch.device("cpu")
MODEL = Model(num_layers=4, num_experts=128, top_k=8)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=NUM_RANKS, redundant_slots=2)
NUM_TOKENS, HIDDEN = 64, 8
NUM_HOME = CLUSTER.experts_per_rank(MODEL)
REPLICAS = sorted(
    (layer, home * NUM_HOME + layer, rank)
    for layer in range(MODEL.num_layers)
    for home in (0, 1)
    for rank in range(8)
    if rank != home
)
"""(layer, expert, rank): an expert of ranks 0 and 1 on all other ranks, another one in every layer."""


def plan_with(replicas: Sequence[tuple[int, int, int]]) -> StepPlan:
    """Return the plan of one micro-batch."""
    return StepPlan(
        id=PlanId(epoch=1, version=1),
        step=0,
        digest=b"",
        home_rank_LE=CLUSTER.identity_placement(MODEL),
        replicas=Replicas.of(np.array([(0, *each) for each in replicas], np.int32).reshape(-1, 4), 1, MODEL.num_layers),
        num_micro_batches=1,
        reason="",
        level=Level.MICRO_BATCHES,
    )


class Layers:
    """The layers of a rank, with or without an agent.

    Args:
        replicas: (layer, expert, rank) of each replica; None for no agent.
        device: symmetric memory through which replicas travel; None to let them travel nowhere.
        is_ahead: whether counts are gathered ahead of the forward.
    """

    def __init__(
        self,
        replicas: Sequence[tuple[int, int, int]] | None,
        *,
        device: SymmetricMemory | None = None,
        is_ahead: bool = False,
    ) -> None:
        self.laps = Laps()
        self._experts = [TinyExperts(NUM_HOME, lambda: self.laps.end("experts")) for _ in range(MODEL.num_layers)]
        self._tokens = torch.zeros(NUM_TOKENS, HIDDEN, requires_grad=True)
        self._probs_TE = torch.rand(NUM_TOKENS, MODEL.num_experts, requires_grad=True)
        self._tokens_per_slot = torch.zeros(NUM_HOME + CLUSTER.redundant_slots, dtype=torch.int64)
        self._executions: list[LayerExecution] = []
        if replicas is None:
            return
        self._plan, self._is_ahead = plan_with(replicas), is_ahead
        self.begin_step()
        by_layer = dict(enumerate(self._experts))
        moved: ExpertTransport = Nowhere() if device is None else SymmetricTransport(device)
        transport, num_slots = TimedTransport(moved), CLUSTER.redundant_slots
        slots = Slots(by_layer, num_slots, CPU, with_gradients=False, memory=transport.memory)
        arrivals = Arrivals(transport, self._experts, num_slots, None, CPU)
        context = ReplicaContext(
            transport=transport,
            slots=slots,
            fetcher=Fetcher(transport, slots, by_layer, {}),
            returns=GradientReturns(transport, arrivals),
            split=TokenSplit(lambda: dist.group.WORLD, 0, CLUSTER.gpus_per_node),
            order=PassOrder([range(MODEL.num_layers)]),
        )
        self._executions = [
            LayerExecution(
                index=layer,
                experts=each,
                context=context,
                reduces_early=False,
                owner=self,
                cells=lambda: self._micro_batch.cells,
                has_routing=lambda: False,
                logical_experts=lambda _: range(NUM_HOME),
                check_weights=lambda *_: None,
                note_forward=lambda: None,
            )
            for layer, each in enumerate(self._experts)
        ]
        routed_TK = torch.arange(MODEL.top_k).expand(NUM_TOKENS, -1)
        for execution in self._executions if is_ahead else ():
            execution.listen(lambda: routed_TK)
        self._replays = [MicroBatchReplay(None, each.routing) for each in self._executions]

    def begin_step(self) -> None:
        """Begin a step with the same plan, of which nobody has run a cell yet."""
        cells = StepCells(
            Placement.identity(MODEL, CLUSTER), CLUSTER, ep_group=0, ep_rank=0, plan=self._plan, device=CPU
        )
        self._micro_batch = MicroBatch(
            owner=self,
            index=0,
            cells=cells,
            realised=RealisedLoad(1, MODEL.num_layers, MODEL.num_experts),
            counts_ahead=CountsAhead(is_agreed=self._is_ahead),
        )
        transfer_schedule.cache_clear()

    def run(self, laps: Laps) -> None:
        """Run all passes of a step: without a backward, forward, and backward."""
        self.laps = laps
        for is_recorded in (False, True):
            laps.begin()
            with torch.set_grad_enabled(is_recorded):
                output = self._forward()
        laps.begin()
        output.backward()
        laps.end("backward")

    def _forward(self) -> Tensor:
        self._tokens.grad = self._probs_TE.grad = None
        with running(self._micro_batch) if self._executions else nullcontext():
            hidden = self._tokens
            for layer in range(MODEL.num_layers):
                hidden = self._layer(layer, hidden)
        return hidden.sum()

    def _layer(self, layer: int, hidden: Tensor) -> Tensor:
        execution = self._executions[layer] if self._executions else None
        if execution is None:
            self.laps.end("attention")
            self.laps.end("router")
            computed = self._experts[layer].forward(hidden, self._tokens_per_slot, self._probs_TE[:, 0])[0]
        else:
            execution.enter()
            self.laps.end("attention")
            self._replays[layer].get_replay_topk(self._probs_TE, MODEL.top_k, default_compute_topk=_no_topk)
            probs, _ = execution.remap(self._probs_TE, MAP_TE, training=True)
            self.laps.end("router")
            forward: Any = self._experts[layer].forward
            computed, _ = execution.compute(forward, hidden, self._tokens_per_slot, probs[:, 0])
        self.laps.end("combine")
        return computed


MAP_TE = torch.ones(NUM_TOKENS, MODEL.num_experts, dtype=torch.bool)


def _no_topk(scores: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return scores, scores


ByStage = dict[str, float]
"""A figure of a cell for every stage of a forward, and for its backward; see `benchmarks.host_layer`."""


def measured_us(cases: Mapping[str, Layers], num_turns: int, *, is_first_time: bool = False) -> dict[str, ByStage]:
    """Run all cases in turn; return the tenth percentiles of the times of each stage, means of both forwards."""
    turns: dict[str, list[ByStage]] = {name: [] for name in cases}
    for turn in range(num_turns):
        for name, layers in cases.items():
            if is_first_time:
                layers.begin_step()
            turns[name] += [by_stage(layers, lambda: time.thread_time() * 1e6)] * (turn >= WARM_UPS)
    return {
        name: {stage: float(np.percentile([each[stage] for each in of_turns], 10)) for stage in of_turns[0]}
        for name, of_turns in turns.items()
    }


def by_stage(layers: Layers, gauge: Callable[[], float]) -> ByStage:
    """Run all passes over all layers; return what a gauge rises by in a pass over a cell."""
    layers.run(laps := Laps(gauge))
    return {
        stage: risen / MODEL.num_layers / (1 if stage == "backward" else 2) for stage, risen in laps.by_stage.items()
    }


class Counts(NamedTuple):
    """What all passes over a cell queue."""

    operations: float
    """torch's own operations."""
    kernels: float
    """relibra's own kernels."""
    other_calls: float
    """Calls of the driver for copies, words and events."""


def counts(layers: Layers, driver: StubDriver) -> Counts:
    """Run all layers; return what they queue per cell."""
    before = driver.num_launches(), driver.num_calls()
    with Operations() as operations:
        layers.run(Laps())
    num_launches, num_calls = driver.num_launches() - before[0], driver.num_calls() - before[1]
    return Counts(*(num / MODEL.num_layers for num in (operations.num, num_launches, num_calls - num_launches)))


@contextmanager
def launching_with(stub: StubDriver) -> Iterator[None]:
    """Let relibra launch its kernels with a driver that does nothing, and gather counts at once, in the body."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    with stub.loaded() as device:

        def on_a_device(*_: object) -> Device:
            return device

        with mock.patch.object(ops, "_kernels", on_a_device):
            yield
    dist.destroy_process_group()


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2000)
    num_turns = (num_cells := parser.parse_args().cells) // MODEL.num_layers
    if num_turns <= WARM_UPS:
        least = (WARM_UPS + 1) * MODEL.num_layers
        parser.error(f"--cells: expected {least} or more, because {WARM_UPS} turns warm up; got {num_cells}")
    torch.set_num_threads(1)
    driver = StubDriver()
    with launching_with(driver):
        cases = {
            "plain": Layers(None),
            "no replicas": Layers([]),
            "replicas": Layers(REPLICAS),
            "replicas, counts ahead": Layers(REPLICAS, is_ahead=True),
            "replicas, symmetric memory": Layers(REPLICAS, device=StubMemory(driver)),
        }
        first_times = {"replicas, symmetric memory, first time": Layers(REPLICAS, device=StubMemory(driver))}
        times_us = measured_us(cases, num_turns) | measured_us(first_times, num_turns, is_first_time=True)
        counted = {name: counts(layers, driver) for name, layers in (cases | first_times).items()}
        with Operations() as operations:
            called = {
                name: by_stage(layers, lambda: operations.num + driver.num_calls())
                for name, layers in (cases | first_times).items()
            }
    plain_us, plain_calls = times_us.pop("plain"), called["plain"]
    rows = [
        {
            "cell": name,
            **{f"{stage} us": round(us - plain_us[stage], 1) for stage, us in times_us[name].items()},
            **{f"{stage} calls": num - plain_calls[stage] for stage, num in called[name].items()},
            "operations": counted[name].operations - counted["plain"].operations,
            "kernels": counted[name].kernels,
            "other calls": counted[name].other_calls,
        }
        for name in times_us
    ]
    operation_us = round(small_operation_us(), 2)
    title = "per layer and micro-batch, beyond the plain layer"
    show(f"{title}; a small operation takes {operation_us} us", rows)
    write("host_cost", rows, cells=num_turns * MODEL.num_layers, small_operation_us=operation_us)


if __name__ == "__main__":
    main()
