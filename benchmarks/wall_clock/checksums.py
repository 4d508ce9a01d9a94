"""What checksums of weights take of a step on CPU ranks: a cost of the agent that `prediction` leaves out.

    python -m benchmarks.wall_clock.checksums

Trains the balanced job of `measure --recorded` alone, and counts how often in a step the agent reads all weights of a
rank's experts to compare them (`relibra.agent.homes.guard`), and the processor's time for it. Other work on the machine
only adds to that. Writes `results/wall_clock_checksums.json`.
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks import results
from benchmarks.wall_clock import routing
from benchmarks.wall_clock.gpt_on_cpu import join
from benchmarks.wall_clock.jobs import JOB, NUM_MICRO_BATCHES, Driver, Job, shape_of
from relibra.agent import AgentConfig
from relibra.agent.homes.guard import Checksums, WeightGuard
from relibra.demo.services import OwnServices, Services
from relibra.planning import Cluster, PlanParams

_NUM_TOKENS, _NUM_RANKS, _NUM_STEPS = 512, 2, 4


_passes_s: list[float] = []
"""The processor's seconds of every pass over the weights."""


def _time_passes() -> None:
    get_checksums = WeightGuard._get_checksums

    def timed(guard: WeightGuard) -> Checksums | None:
        began_s = time.thread_time()
        found = get_checksums(guard)
        if found is not None:
            _passes_s.append(time.thread_time() - began_s)
        return found

    WeightGuard._get_checksums = timed  # type: ignore[method-assign]


def _run_rank(rank: int, folder: str, services: Services) -> None:
    join(folder, rank, _NUM_RANKS)
    _time_passes()
    shape = shape_of(_NUM_TOKENS, is_recorded=True)
    model, address = shape.model, services.planner_address
    cluster = Cluster(num_nodes=1, gpus_per_node=_NUM_RANKS, redundant_slots=2)
    driver = Driver(model, cluster, address, PlanParams())
    config = AgentConfig(planner_address=address, job_id=JOB, model=model, cluster=cluster, guard=False)
    job, rows = Job(shape, config), []
    for step in range(_NUM_STEPS):
        routed_MRLTK = routing.recorded(model, NUM_MICRO_BATCHES, _NUM_RANKS, _NUM_TOKENS, step)
        if rank == 0:
            driver.report(step, routed_MRLTK)
        _passes_s.clear()
        job.step(step, torch.tensor(routed_MRLTK[:, rank]), driver.submit)
        rows.append({"rank": rank, "step": step, "passes": len(_passes_s), "cpu_s": sum(_passes_s)})
    job.close()
    driver.close()
    of_ranks = [rows] * _NUM_RANKS
    dist.all_gather_object(of_ranks, rows)
    if rank == 0:
        size_bytes = model.num_layers * model.num_experts // _NUM_RANKS * (model.expert_weight_size_bytes or 0)
        found = [row for of_rank in of_ranks for row in of_rank[1:]]  # the optimizer has state from the second step on
        results.show("checksums of weights", found)
        results.write("wall_clock_checksums", found, bytes_of_a_pass=size_bytes)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, OwnServices(Path(folder) / "services") as services:
        os.environ["OMP_NUM_THREADS"] = "1"
        mp.start_processes(_run_rank, args=(folder, services), nprocs=_NUM_RANKS, start_method="spawn")
