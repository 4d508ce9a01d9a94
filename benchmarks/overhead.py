"""The cost of an attached agent that has nothing to do: steps with the identity plan beside plain steps.

    python -m benchmarks.overhead [--steps 40]

Two expert-parallel ranks on CPU train the same small GPT with MoE layers, plain and attached. The jobs take one step
each in turn, and the order alternates. Overhead is the median over pairs of steps, in wall time and in the CPU time of
both ranks, which other work on the machine disturbs less. *Noise* is the same figure for two plain models.
"""

import argparse
import functools
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.fixed_plans import FixedPlans
from benchmarks.gpt_on_cpu import Gpt, Shape, join
from benchmarks.results import write
from relibra.agent import Agent, AgentConfig, Phase, attach
from relibra.planning import Cluster, Model

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
MODEL = Model(num_layers=4, num_experts=16, top_k=2)
SHAPE = Shape(model=MODEL, hidden_size=512, expert_ffn_size=512, num_sequences=1, sequence_length=256)
NUM_MICRO_BATCHES = 2


class Job:
    """One GPT in training, plain or with an agent."""

    def __init__(self, *, is_attached: bool) -> None:
        self._gpt = Gpt(SHAPE)
        self._agent: Agent | None = None
        if is_attached:
            config = AgentConfig(planner_address="none:0", job_id="overhead", model=MODEL, cluster=CLUSTER)
            identity = FixedPlans(MODEL, CLUSTER, NUM_MICRO_BATCHES)
            self._agent = attach(self._gpt.ddp, self._gpt.optimizer, config, plans=identity)

    def step(self, step: int) -> tuple[float, float]:
        """Train one step; return its wall time from barrier to barrier and the CPU time of all ranks, in seconds."""
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
        if self._agent is not None:
            self._agent.begin_step(step, Phase.UPDATE)
        self._gpt.train([functools.partial(self._loss, step, index) for index in range(NUM_MICRO_BATCHES)])
        if self._agent is not None:
            self._agent.end_step()
        cpu_s = torch.tensor(time.process_time() - cpu_began)
        dist.all_reduce(cpu_s)
        return time.perf_counter() - began, cpu_s.item()

    def _loss(self, step: int, index: int) -> torch.Tensor:
        seed = step * NUM_MICRO_BATCHES + index
        if self._agent is None:
            return self._gpt.loss(seed)
        with self._agent.micro_batch(index):
            return self._gpt.loss(seed)


def run_rank(rank: int, folder: str, num_steps: int) -> None:
    """Train the three jobs in turn; rank 0 prints and writes the results."""
    join(folder, rank, CLUSTER.num_ranks)
    jobs = {"plain": Job(is_attached=False), "attached": Job(is_attached=True), "plain again": Job(is_attached=False)}
    for job in jobs.values():
        job.step(0)
    times_s: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for step in range(1, num_steps + 1):
        names = list(jobs)
        for name in names if step % 2 else reversed(names):
            times_s[name].append(jobs[name].step(step))
    if rank == 0:
        rows = list[dict[str, object]]()
        plain_N2 = np.array(times_s["plain"])
        wall_s, cpu_s = np.median(plain_N2, axis=0)
        print(f"plain step {wall_s * 1e3:.0f} ms, {cpu_s * 1e3:.0f} ms of CPU; medians of {num_steps}")
        for name, label in (("attached", "overhead of the identity plan"), ("plain again", "noise")):
            ratio_N2 = (np.array(times_s[name]) / plain_N2 - 1) * 100
            for kind, ratio_N in zip(("wall", "CPU"), ratio_N2.T, strict=True):
                low, median, high = np.percentile(ratio_N, [25, 50, 75]).round(2).tolist()
                rows.append({"what": label, "time": kind, "median": median, "quartiles": [low, high]})
                print(f"{label}, {kind} time: {median:+.2f} % (quartiles {low:+.2f} to {high:+.2f})")
        write("overhead", rows, unit="percent of a plain step", steps=num_steps, plain_step_ms=round(wall_s * 1e3, 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="pairs of steps to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run_rank, args=(folder, arguments.steps), nprocs=2, start_method="fork")
