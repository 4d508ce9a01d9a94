"""Measure real training steps: plain, with relibra, and under forced balance; compare them with the simulation.

    python -m benchmarks.wall_clock [--steps 5] [--ranks 2] [--tokens 2048] [--sigma 1.5]

Expert-parallel ranks, a core each, train a small GPT with megatron's MoE layers in fp32. The planner, Redis and the
status service are those of `relibra up`, on the same cores. Every step replays new skewed routing; forced balance
replays routing that gives every expert equally many random tokens. The skew is larger than that of any trace, because
it averages out over so few ranks; plain training is then as imbalanced as the traces are on 8 ranks. Plain, relibra and
forced balance take one step each in turn. A step consists of RECOMPUTE, UPDATE and the optimizer. With relibra a step
begins when rank 0 submits the schedule, so it includes planning, gRPC, transfers and reports. It does not include the
streaming of counts, which rollout workers do before the step.

The simulation gets constants of this machine: the times of an expert and of an all-to-all, medians of measurements
between the steps, the host time of a cell with replicas and of a step (`host_time`), measured before, and
the times of the warm-up steps' reorders. It takes the speed of everything else from forced balance. The times of plain
and relibra are then predictions. `python -m benchmarks.wall_clock.table` writes predicted and measured figures of all
cases side by side into docs/clock.md.

`--recorded RUN` takes the routing of gpt-oss-20b instead, in a model whose experts take most of a step: see `shape_of`
and `routing.recorded`. RUN names the file of the results.

As root, `unshare --net sh -c 'ip link set lo up; tc qdisc add dev lo root tbf rate 4000mbit burst 1mb latency 50ms;
python -m benchmarks.wall_clock --network-mbit 4000'` measures with a network between ranks that is slower than memory.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.wall_clock import host_time, routing
from benchmarks.wall_clock.constants import measured_cost, median_cost
from benchmarks.wall_clock.gpt_on_cpu import Shape, join
from benchmarks.wall_clock.jobs import (
    JOB,
    NUM_MICRO_BATCHES,
    Driver,
    Job,
    shape_of,
)
from benchmarks.wall_clock.prediction import predict
from relibra.agent import AgentConfig
from relibra.demo.services import OwnServices, Services
from relibra.planning import Cluster, PlanParams
from relibra.planning.cost import CostModel

_WARM_UPS = 2
"""Steps that are not measured. The optimizer has state to move from the second one on."""

_HOST_STEPS = 20
"""Steps of tiny models that measure the host time before the others."""

_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}
"""Tells glibc to keep freed memory, as torch does on GPUs. Otherwise tensors cost page faults: 900,000 in a step."""


def waited_s(services: Services, steps: Iterable[int]) -> dict[str, float]:
    """Return the reported waits of the slowest rank in a step, medians over steps; they are part of the step's time."""
    executions = [services.get(f"/v1/jobs/{JOB}/steps/{step}/execution") for step in steps]
    names = ("plan_wait_s", "reorder_s", "replica_wait_s")
    return {name: float(np.median([sum(phase[name] for phase in phases) for phases in executions])) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one run measures."""

    num_steps: int
    num_ranks: int
    num_tokens: int
    """The tokens of a rank in a micro-batch."""
    sigma: float
    """The standard deviation of the experts' log-probabilities."""
    network_mbit: int | None
    """The megabits per second of the network between ranks, in either direction; None: as fast as the machine is."""

    run: str | None = None
    """The name of a run on recorded routing; None: routing is drawn."""

    @property
    def shape(self) -> Shape:
        """The model and a rank's micro-batch."""
        return shape_of(self.num_tokens, is_recorded=self.run is not None)

    @property
    def name(self) -> str:
        """The name of the file with the results."""
        if self.run is not None:
            return f"wall_clock_recorded-{self.run}"
        shaped = f"-{self.network_mbit}mbit" if self.network_mbit else ""
        return f"wall_clock-{self.num_ranks}-{self.num_tokens}-{self.sigma:g}{shaped}"

    @property
    def cluster(self) -> Cluster:
        """The EP group."""
        return Cluster(num_nodes=1, gpus_per_node=self.num_ranks, redundant_slots=2)


def run_rank(rank: int, folder: str, services: Services, case: Case) -> None:
    """Train the three jobs in turn; rank 0 prints and writes the results."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    join(folder, rank, case.num_ranks)
    cell_us, step_us = host_time.measure(num_steps=_HOST_STEPS)
    shape, model = case.shape, case.shape.model
    sizes = (NUM_MICRO_BATCHES, case.num_ranks, case.num_tokens)
    plain, forced = Job(shape), Job(shape)
    host_us = max(0.0, cell_us)
    costs = [measured_cost(plain, model, case.num_tokens, host_us)]
    dist.broadcast_object_list(costs)  # all ranks register the same job
    address = services.planner_address
    driver = Driver(model, case.cluster, address, PlanParams(cost=costs[0]))
    config = AgentConfig(planner_address=address, job_id=JOB, model=model, cluster=case.cluster, guard=False)
    relibra = Job(shape, config)

    if case.run is None:
        routed = functools.partial(routing.skewed, model, *sizes, sigma=case.sigma)
    else:
        routed = functools.partial(routing.recorded, model, *sizes)
    even_MLTK = torch.tensor(routing.even(model, *sizes)[:, rank])
    times_s: dict[str, list[float]] = {"plain": [], "relibra": [], "forced balance": []}
    counts = []
    for step in range(_WARM_UPS + case.num_steps):
        routed_MRLTK = routed(step)
        routed_MLTK = torch.tensor(routed_MRLTK[:, rank])
        if rank == 0:
            driver.report(step, routed_MRLTK)
        turns = {
            "plain": functools.partial(plain.step, step, routed_MLTK),
            "relibra": functools.partial(relibra.step, step, routed_MLTK, driver.submit),
            "forced balance": functools.partial(forced.step, step, even_MLTK),
        }
        for name in list(turns) if step % 2 else reversed(turns):
            times_s[name].append(turns[name]())
        counts.append(routing.counts_SLE(routed_MRLTK, model.num_experts))
        costs.append(measured_cost(plain, model, case.num_tokens, host_us))
        if rank == 0:
            print("  ".join(f"{name} {each[-1]:.2f} s" for name, each in times_s.items()), flush=True)
    relibra.close()
    driver.close()
    if rank == 0:
        measured = {name: np.array(each[_WARM_UPS:]) for name, each in times_s.items()}
        reorders_s = [waited_s(services, [step])["reorder_s"] for step in range(_WARM_UPS)]
        waits_s = waited_s(services, range(_WARM_UPS, _WARM_UPS + case.num_steps))
        report(case, measured, reorders_s, waits_s, counts, costs, max(0.0, step_us))


def report(
    case: Case,
    times_s: Mapping[str, NDArray[np.float64]],
    warm_up_reorders_s: Sequence[float],
    waited: Mapping[str, float],
    counts: list[NDArray[np.uint32]],
    costs: Sequence[CostModel],
    host_step_us: float,
) -> None:
    """Print and write the results: medians over steps of the ratios within a step.

    The planner had the first of `costs`. The simulation takes the medians of all, because the machine is not equally
    fast all the time.
    """
    cost = median_cost(costs)
    balanced_s = float(np.median(times_s["forced balance"]))
    schedule = routing.schedule(NUM_MICRO_BATCHES, case.num_ranks)
    predicted = predict(
        counts,
        schedule,
        case.shape.model,
        case.cluster,
        planned_with=costs[0],
        cost=cost,
        hidden_size=case.shape.hidden_size,
        expert_ffn_size=case.shape.expert_ffn_size,
        sequence_length=case.shape.sequence_length,
        balanced_s=balanced_s,
        warm_up_reorders_s=warm_up_reorders_s,
        host_step_us=host_step_us,
    )
    row = {
        "ranks": case.num_ranks,
        "tokens": case.num_tokens,
        "sigma": case.sigma,
        "network_mbit": case.network_mbit,
        "step_s": {name: float(np.median(each)) for name, each in times_s.items()},
        "of_balance": float(np.median(times_s["forced balance"] / times_s["relibra"])),
        "plain_of_balance": float(np.median(times_s["forced balance"] / times_s["plain"])),
        "gain": float(np.median(times_s["plain"] / times_s["relibra"])),
        "waited_s": dict(waited),
        "gain_quartiles": np.percentile(times_s["plain"] / times_s["relibra"], [25, 75]).tolist(),
        "predicted": predicted,
    }
    path = results.write(
        case.name,
        [row],
        num_steps=case.num_steps,
        planned_with=costs[0].to_dict(),
        cost=cost.to_dict(),
        warm_up_reorders_s=warm_up_reorders_s,
        host_step_us=host_step_us,
    )
    for name, value in row.items():
        print(f"{name}: {value}")
    print(f"written to {path}")


def main() -> None:
    """Read the options; start the services and the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="steps of each kind to measure")
    parser.add_argument("--ranks", type=int, default=2, help="expert-parallel ranks, a core each")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a rank in a micro-batch; a multiple of 512")
    parser.add_argument(
        "--sigma", type=float, default=1.5, help="skew: standard deviation of the experts' log-probabilities"
    )
    parser.add_argument("--network-mbit", type=int, help="the megabits per second of this network, to name the results")
    parser.add_argument("--recorded", metavar="RUN", help="use the routing of gpt-oss-20b; RUN names the results")
    arguments = parser.parse_args()
    case = Case(
        num_steps=arguments.steps,
        num_ranks=arguments.ranks,
        num_tokens=arguments.tokens,
        sigma=arguments.sigma,
        network_mbit=arguments.network_mbit,
        run=arguments.recorded,
    )
    if case.run is not None and not routing.RECORDED.is_file():
        parser.error(f"expected the recorded routing {routing.RECORDED}, and there is no such file: set RELIBRA_TRACES")
    if case.num_ranks > (cores := len(os.sched_getaffinity(0))):
        parser.error(
            f"{case.num_ranks} ranks need as many cores, and there are {cores}: ranks that share a core lend each "
            "other their idle time, so imbalance would cost less than the simulation says"
        )
    with tempfile.TemporaryDirectory() as folder, OwnServices(Path(folder) / "services") as services:
        os.environ.update(_KEEP_MEMORY)
        mp.start_processes(
            run_rank,
            args=(folder, services, case),
            nprocs=case.num_ranks,
            start_method="spawn",  # gRPC does not survive a fork
        )
