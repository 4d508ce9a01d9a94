"""The time that hosts spend on cells with replicas, beside cells without: a constant of the simulation.

    python -m benchmarks.wall_clock.host_time [--steps 40]

Two expert-parallel ranks on CPU train the same tiny GPT three times: plain, attached with the identity plan, and
attached with a replica on each rank in every cell. The model is so small that a step is almost all host time. The jobs
take one step each in turn, and the order alternates. What replicas add to a step, divided by the passes over its cells,
is the host time of a cell: mapping tokens to copies, starting transfers, waiting for them, and adding gradients. It
contains gloo's time for two tiny parcels. What the identity plan adds to a plain step is the host time of a step.
"""

import argparse
import functools
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks import results
from benchmarks.wall_clock.gpt_on_cpu import Gpt, Shape, join
from relibra.agent import Agent, AgentConfig, Phase, PlanAnswer, attach
from relibra.planning import Cluster, ExecutionReport, Model, PlanId, StepPlan

NUM_LAYERS, NUM_MICRO_BATCHES, NUM_EXPERTS = 4, 4, 8
_PASSES = 2
"""The forward and the backward pass of UPDATE."""


class FixedPlans:
    """A source of plans without a planner: the same plan for every step, with a replica on each rank, or with none."""

    def __init__(self, model: Model, cluster: Cluster, *, replicas: bool) -> None:
        self._home_rank_LE = cluster.identity_placement(model)
        shape = (NUM_MICRO_BATCHES, model.num_layers, cluster.num_ranks if replicas else 0)
        row_Y, layer_Y, rank_Y = np.indices(shape).reshape(3, -1)
        expert_Y = (rank_Y - 1) % cluster.num_ranks * cluster.experts_per_rank(model)
        self._replica_index_Y4 = np.column_stack([row_Y, layer_Y, expert_Y, rank_Y]).astype(np.int32)
        self._replica_index_Y4 = self._replica_index_Y4[np.lexsort(self._replica_index_Y4.T[::-1])]

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        """Return the plan with the number of the step."""
        plan = StepPlan(
            id=PlanId(epoch=1, version=step + 1),
            step=step,
            digest=b"",
            home_rank_LE=self._home_rank_LE,
            replica_index_Y4=self._replica_index_Y4,
            num_micro_batches=NUM_MICRO_BATCHES,
            reason="fixed",
        )
        return PlanAnswer(plan, plan.reason)

    def prefetch(self, step: int) -> None:
        """Do nothing: there is no plan to fetch."""

    def report(self, report: ExecutionReport) -> None:
        """Do nothing: there is no planner to tell."""

    def rollback(self, step: int) -> None:
        """Do nothing: plans of a step are always the same."""

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


class Job:
    """One tiny GPT in training: plain (`replicas` is None), or with an agent and replicas in every cell, or none."""

    def __init__(self, num_ranks: int, replicas: bool | None) -> None:
        model = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=2)
        cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=1)
        self._gpt = Gpt(Shape(model=model, hidden_size=64, expert_ffn_size=64, num_sequences=1, sequence_length=32))
        self._agent: Agent | None = None
        if replicas is not None:
            plans = FixedPlans(model, cluster, replicas=replicas)
            config = AgentConfig(planner_address="none:0", job_id="host-time", model=model, cluster=cluster)
            self._agent = attach(self._gpt.ddp, self._gpt.optimizer, config, plans=plans)

    def step(self, step: int) -> float:
        """Train one step; return its seconds from barrier to barrier."""
        dist.barrier()
        began_s = time.perf_counter()
        if self._agent is not None:
            self._agent.begin_step(step, Phase.UPDATE)
        self._gpt.train([functools.partial(self._loss, step, index) for index in range(NUM_MICRO_BATCHES)])
        if self._agent is not None:
            self._agent.end_step()
        dist.barrier()
        return time.perf_counter() - began_s

    def close(self) -> None:
        """Detach the agent."""
        if self._agent is not None:
            self._agent.detach()

    def _loss(self, step: int, index: int) -> torch.Tensor:
        seed = step * NUM_MICRO_BATCHES + index
        if self._agent is None:
            return self._gpt.loss(seed)
        with self._agent.micro_batch(index):
            return self._gpt.loss(seed)


def measure(num_steps: int) -> tuple[list[float], list[float]]:
    """Train on all ranks of the process group; return (us of a cell, us of a step), medians and quartiles of steps."""
    num_ranks = dist.get_world_size()
    jobs = {name: Job(num_ranks, replicas) for name, replicas in (("plain", None), ("none", False), ("all", True))}
    for job in jobs.values():
        job.step(0)
    times_s: dict[str, list[float]] = {name: [] for name in jobs}
    for step in range(1, num_steps + 1):
        for name in list(jobs) if step % 2 else reversed(jobs):
            times_s[name].append(jobs[name].step(step))
    for job in jobs.values():
        job.close()
    seconds = {name: np.array(each) for name, each in times_s.items()}
    cell_us = (seconds["all"] - seconds["none"]) / (NUM_LAYERS * NUM_MICRO_BATCHES * _PASSES) * 1e6
    step_us = (seconds["none"] - seconds["plain"]) * 1e6
    return np.percentile(cell_us, [50, 25, 75]).tolist(), np.percentile(step_us, [50, 25, 75]).tolist()


def run_rank(rank: int, folder: str, num_steps: int, num_ranks: int) -> None:
    """Measure; rank 0 prints and writes the results."""
    join(folder, rank, num_ranks)
    cell_us, step_us = measure(num_steps)
    if rank == 0:
        measured = {"a pass over a cell with replicas": cell_us, "a step with the identity plan": step_us}
        rows = [{"what": what, "median_us": each[0], "quartiles_us": each[1:]} for what, each in measured.items()]
        results.show("the time of hosts", rows)
        results.write("host_time", rows, steps=num_steps, ranks=num_ranks)


def main() -> None:
    """Read the options and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="steps of each kind to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run_rank, args=(folder, arguments.steps, 2), nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
