"""The time that hosts spend on cells with replicas, beside cells without: a constant of the simulation.

The ranks train the same tiny GPT three times: plain, attached with the identity plan, and attached with a replica on
each rank in every cell. The model is so small that a step is almost all host time. The jobs take one step each in turn,
and the order alternates. What replicas add to a step, divided by the passes over its cells, is the host time of a cell:
mapping tokens to copies, starting transfers, waiting for them, and adding gradients. It contains gloo's time for two
tiny parcels. What the identity plan adds to a plain step is the host time of a step.
"""

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.wall_clock import routing
from benchmarks.wall_clock.gpt_on_cpu import Shape
from benchmarks.wall_clock.jobs import Job
from relibra.agent import AgentConfig, PlanAnswer
from relibra.planning import Cluster, ExecutionReport, Model, PlanId, Replicas, StepPlan

NUM_MICRO_BATCHES = 4
_MODEL = Model(num_layers=4, num_experts=8, top_k=2)
_PASSES = 3
"""The forward pass of RECOMPUTE, and the forward and the backward pass of UPDATE."""


class FixedPlans:
    """A source of plans without a planner: the same plan for every step, with a replica on each rank, or with none."""

    def __init__(self, model: Model, cluster: Cluster, *, replicas: bool) -> None:
        self._home_rank_LE = cluster.identity_placement(model)
        shape = (NUM_MICRO_BATCHES, model.num_layers, cluster.num_ranks if replicas else 0)
        row_Y, layer_Y, rank_Y = np.indices(shape).reshape(3, -1)
        expert_Y = (rank_Y - 1) % cluster.num_ranks * cluster.experts_per_rank(model)
        index_Y4 = np.column_stack([row_Y, layer_Y, expert_Y, rank_Y]).astype(np.int32)
        self._replicas = Replicas.of(index_Y4[np.lexsort(index_Y4.T[::-1])], *shape[:2])

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        """Return the plan with the number of the step."""
        plan = StepPlan(
            id=PlanId(epoch=1, version=step + 1),
            step=step,
            digest=b"",
            home_rank_LE=self._home_rank_LE,
            replicas=self._replicas,
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


def measure(num_steps: int) -> tuple[float, float]:
    """Train on all ranks of the process group; return the us of a cell and of a step, medians of steps."""
    cluster = Cluster(num_nodes=1, gpus_per_node=dist.get_world_size(), redundant_slots=1)
    shape = Shape(model=_MODEL, hidden_size=64, expert_ffn_size=64, num_sequences=1, sequence_length=32)
    config = AgentConfig(planner_address="none:0", job_id="host-time", model=_MODEL, cluster=cluster, guard=False)
    jobs = {"plain": Job(shape)}
    for name in ("none", "all"):
        jobs[name] = Job(shape, config, FixedPlans(_MODEL, cluster, replicas=name == "all"))
    routed_MRLTK = routing.even(_MODEL, NUM_MICRO_BATCHES, cluster.num_ranks, shape.sequence_length)
    routed_MLTK = torch.tensor(routed_MRLTK[:, dist.get_rank()])
    times_s: dict[str, list[float]] = {name: [] for name in jobs}
    for step in range(num_steps + 1):
        for name in list(jobs) if step % 2 else reversed(jobs):
            times_s[name].append(jobs[name].step(step, routed_MLTK))
    for job in jobs.values():
        job.close()
    plain_s, none_s, all_s = (np.array(times_s[name][1:]) for name in ("plain", "none", "all"))
    cell_us = (all_s - none_s) / (_MODEL.num_layers * NUM_MICRO_BATCHES * _PASSES) * 1e6
    return float(np.median(cell_us)), float(np.median((none_s - plain_s) * 1e6))
