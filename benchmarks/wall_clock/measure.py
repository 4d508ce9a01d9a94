"""Measure real training steps: plain, with relibra, and under forced balance; compare them with the simulation.

    python -m benchmarks.wall_clock [--steps 5] [--tokens 4096] [--sigma 1.5]

Two expert-parallel ranks, a core each, train a small GPT with megatron's MoE layers in fp32. The planner, Redis and the
status service are those of `relibra up`, on the same two cores. Every step replays new skewed routing; forced balance
replays routing that takes all experts in turn. The skew is larger than that of any trace, because it averages out over
so few ranks; plain training is then as imbalanced as the traces are on 8 ranks. Plain, relibra and forced balance take
one step each in turn. A step consists of RECOMPUTE, UPDATE and the optimizer. With relibra a step begins when rank 0
submits the schedule, so it includes planning, gRPC, transfers and reports. It does not include the streaming of counts,
which rollout workers do before the step.

The simulation gets measured times of an expert and of an all-to-all, and it takes the speed of everything else from
forced balance. The times of plain and relibra are then predictions.
"""

import argparse
import functools
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.gpt_on_cpu import Gpt, Shape, join
from benchmarks.wall_clock import routing
from benchmarks.wall_clock.prediction import predict
from relibra.agent import Agent, AgentConfig, Phase, attach
from relibra.demo.services import OwnServices, Services
from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.cost import CostModel
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
HIDDEN_SIZE, FFN_SIZE = 512, 1024
EXPERT_SIZE_BYTES = 4 * 3 * HIDDEN_SIZE * FFN_SIZE
MODEL = Model(
    num_layers=3,
    num_experts=16,
    top_k=2,
    expert_weight_size_bytes=EXPERT_SIZE_BYTES,
    expert_state_size_bytes=3 * EXPERT_SIZE_BYTES,
)
NUM_MICRO_BATCHES = 4
SEQUENCE_LENGTH = 512


class PlainJob:
    """Megatron alone, which replays given routing."""

    def __init__(self, shape: Shape) -> None:
        self._gpt = Gpt(shape)

    def step(self, step: int, routed_MLTK: torch.Tensor) -> float:
        """Train one step; return its seconds."""
        dist.barrier()
        began = time.perf_counter()
        self._step(step, routed_MLTK)
        dist.barrier()
        return time.perf_counter() - began

    def _step(self, step: int, routed_MLTK: torch.Tensor) -> None:
        losses = [functools.partial(self._loss, index, routed_MLTK[index]) for index in range(NUM_MICRO_BATCHES)]
        with torch.no_grad():
            for loss in losses:
                loss()
        self._gpt.train(losses)

    def _loss(self, index: int, routed_LTK: torch.Tensor) -> torch.Tensor:
        self._gpt.replay(routed_LTK)
        return self._gpt.loss(index)

    def expert_us(self, num_tokens: int) -> float:
        """Return the forward time of one expert, with all ranks busy.

        Measures two forward passes and a backward pass, which counts as two more, and divides by four.
        """
        expert = self._gpt.moe_layers[0].experts.local_experts[0]
        tokens = torch.randn(num_tokens, HIDDEN_SIZE, requires_grad=True)
        share = torch.ones(num_tokens)
        times_s = []
        for _ in range(8):
            dist.barrier()
            began = time.perf_counter()
            with torch.no_grad():
                expert(tokens, share)
            with self._gpt.ddp.no_sync():
                expert(tokens, share)[0].sum().backward()
            times_s.append(time.perf_counter() - began)
        return float(np.median(times_s[1:])) / 4 * 1e6


class BalancedJob(PlainJob):
    """Megatron with an agent of relibra."""

    def __init__(self, shape: Shape, planner_address: str, params: PlanParams) -> None:
        super().__init__(shape)
        self._planner = PlannerClient(planner_address)
        self._reporter = RolloutReporter(planner_address, "wall-clock", num_experts=MODEL.num_experts)
        if dist.get_rank() == 0:
            self._planner.register_job("wall-clock", MODEL, CLUSTER, params)
        dist.barrier()
        config = AgentConfig(planner_address=planner_address, job_id="wall-clock", model=MODEL, cluster=CLUSTER)
        self._agent: Agent = attach(self._gpt.ddp, self._gpt.optimizer, config)
        self._schedule = routing.schedule(NUM_MICRO_BATCHES, CLUSTER.num_ranks)
        self._sequence_ids = [f"sequence-{index}" for index in range(self._schedule.num_sequences)]

    def report(self, step: int, routed_MRLTK: NDArray[np.int64]) -> None:
        """Report the step's routing, as rollout workers do before the step."""
        routed_SLTK = routed_MRLTK.reshape(-1, *routed_MRLTK.shape[2:])
        for sequence_id, routed_LTK in zip(self._sequence_ids, routed_SLTK, strict=True):
            self._reporter.report(step, sequence_id, routed_LTK.swapaxes(0, 1))
        self._reporter.flush()

    def close(self) -> None:
        """Detach the agent and close the connections."""
        self._agent.detach()
        self._reporter.close()
        self._planner.close()

    def _step(self, step: int, routed_MLTK: torch.Tensor) -> None:
        if dist.get_rank() == 0:
            self._planner.submit_schedule("wall-clock", step, self._sequence_ids, self._schedule)
        outcome = self._agent.begin_step(step, Phase.RECOMPUTE)
        if outcome.applied is None:
            raise SystemExit(f"step {step} ran without its plan: {outcome.reason}")
        losses = [functools.partial(self._loss, index, routed_MLTK[index]) for index in range(NUM_MICRO_BATCHES)]
        with torch.no_grad():
            for loss in losses:
                loss()
        self._agent.begin_step(step, Phase.UPDATE)
        self._gpt.train(losses)
        self._agent.end_step()

    def _loss(self, index: int, routed_LTK: torch.Tensor) -> torch.Tensor:
        with self._agent.micro_batch(index, routed_LTK):
            return self._gpt.loss(index)


def all_to_all_bytes_per_us(size_bytes: int = 8 << 20) -> float:
    """Measure the rate at which a rank sends and receives at the same time."""
    sent = torch.zeros(size_bytes // 4)
    received = torch.zeros_like(sent)
    times_s = []
    for _ in range(8):
        dist.barrier()
        began = time.perf_counter()
        dist.all_to_all_single(received, sent)
        times_s.append(time.perf_counter() - began)
    return size_bytes * (1 - 1 / dist.get_world_size()) / float(np.median(times_s[1:])) / 1e6


def waited_s(services: Services, num_steps: int) -> dict[str, float]:
    """Return the reported waits of the slowest rank in a step, medians over steps; they are part of the step's time."""
    steps = [services.get(f"/v1/jobs/wall-clock/steps/{step + 1}/execution") for step in range(num_steps)]
    names = ("plan_wait_s", "reorder_s", "replica_wait_s")
    return {name: float(np.median([sum(phase[name] for phase in phases) for phases in steps])) for name in names}


def run_rank(rank: int, folder: str, services: Services, num_steps: int, num_tokens: int, sigma: float) -> None:
    """Train the three jobs in turn; rank 0 prints and writes the results."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    join(folder, rank, CLUSTER.num_ranks)
    shape = Shape(
        model=MODEL,
        hidden_size=HIDDEN_SIZE,
        expert_ffn_size=FFN_SIZE,
        num_sequences=num_tokens // SEQUENCE_LENGTH,
        sequence_length=SEQUENCE_LENGTH,
    )
    sizes = (NUM_MICRO_BATCHES, CLUSTER.num_ranks, num_tokens)
    plain, forced = PlainJob(shape), PlainJob(shape)
    mean_tokens = num_tokens * MODEL.top_k * CLUSTER.num_ranks // MODEL.num_experts
    at_tokens = (mean_tokens // 8, mean_tokens // 2, mean_tokens, 2 * mean_tokens, 4 * mean_tokens)
    expert_us = np.maximum.accumulate([plain.expert_us(each) for each in at_tokens])
    cost = CostModel(
        expert_tokens=(0.0, *at_tokens),
        expert_us=(0.0, *expert_us.tolist()),
        token_size_bytes=2 * 4 * HIDDEN_SIZE,
        intra_node_bytes_per_us=(bytes_per_us := all_to_all_bytes_per_us()),
        inter_node_bytes_per_us=bytes_per_us,  # the rate at which planning charges moves of experts
        hidden_transfer_share=0.0,  # a rank has one core, so it cannot compute while it copies
    )
    costs = [cost]
    dist.broadcast_object_list(costs)
    params = PlanParams(cost=costs[0])
    relibra = BalancedJob(shape, services.planner_address, params)

    even_MLTK = torch.tensor(routing.even(MODEL, *sizes)[:, rank])
    times_s: dict[str, list[float]] = {"plain": [], "relibra": [], "forced balance": []}
    counts = []
    for step in range(num_steps + 1):  # the first step warms up
        routed_MRLTK = routing.skewed(MODEL, *sizes, step, sigma)
        routed_MLTK = torch.tensor(routed_MRLTK[:, rank])
        if rank == 0:
            relibra.report(step, routed_MRLTK)
        turns = {
            "plain": functools.partial(plain.step, step, routed_MLTK),
            "relibra": functools.partial(relibra.step, step, routed_MLTK),
            "forced balance": functools.partial(forced.step, step, even_MLTK),
        }
        for name in list(turns) if step % 2 else reversed(turns):
            times_s[name].append(turns[name]())
        counts.append(routing.counts_SLE(routed_MRLTK, MODEL.num_experts))
        if rank == 0:
            print("  ".join(f"{name} {each[-1]:.2f} s" for name, each in times_s.items()), flush=True)
    relibra.close()
    if rank == 0:
        measured = {name: np.array(each[1:]) for name, each in times_s.items()}
        report(measured, waited_s(services, num_steps), counts, costs[0], num_tokens)


def report(
    times_s: Mapping[str, NDArray[np.float64]],
    waited: Mapping[str, float],
    counts: list[NDArray[np.uint32]],
    cost: CostModel,
    num_tokens: int,
) -> None:
    """Print and write the results: medians over steps of the ratios within a step."""
    balanced_s = float(np.median(times_s["forced balance"]))
    schedule = routing.schedule(NUM_MICRO_BATCHES, CLUSTER.num_ranks)
    predicted = predict(counts, schedule, MODEL, CLUSTER, cost, HIDDEN_SIZE, FFN_SIZE, SEQUENCE_LENGTH, balanced_s)
    row = {
        "step_s": {name: float(np.median(each)) for name, each in times_s.items()},
        "of_balance": float(np.median(times_s["forced balance"] / times_s["relibra"])),
        "plain_of_balance": float(np.median(times_s["forced balance"] / times_s["plain"])),
        "gain": float(np.median(times_s["plain"] / times_s["relibra"])),
        "waited_s": dict(waited),
        "gain_quartiles": np.percentile(times_s["plain"] / times_s["relibra"], [25, 75]).tolist(),
        "predicted": predicted,
    }
    path = results.write(f"wall_clock-{num_tokens}", [row], num_steps=len(counts) - 1, cost=cost.to_dict())
    for name, value in row.items():
        print(f"{name}: {value}")
    print(f"written to {path}")


def main() -> None:
    """Read the options; start the services and the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="steps of each kind to measure")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a rank in a micro-batch; a multiple of 512")
    parser.add_argument(
        "--sigma", type=float, default=1.5, help="skew: standard deviation of the experts' log-probabilities"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, OwnServices(Path(folder) / "services") as services:
        mp.start_processes(
            run_rank,
            args=(folder, services, arguments.steps, arguments.tokens, arguments.sigma),
            nprocs=CLUSTER.num_ranks,
            start_method="spawn",  # gRPC does not survive a fork
        )
