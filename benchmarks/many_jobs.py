"""Measure many jobs on few planners: their processor time and memory, the wait for plans, and what Redis keeps.

    python -m benchmarks.many_jobs [PLANNERSxJOBS ...] [--interval 30] [--steps 1]

Without arguments: 20 and 200 jobs on one planner, and 200 on three, in three and a half minutes. Each case starts an
embedded Redis (append-only file on) and its planners. Every `interval` seconds each job takes a step, and the jobs take
turns evenly: 64 sequences are reported, the schedule is submitted, 8 ranks fetch their plans and report what they did.
A step has 16 micro-batches x 8 layers = 128 cells of 64 experts, with random loads. The first step of a job is not
measured.

- Plan: from submitting the schedule until the first rank holds its plan.
- CPU: of all processes of the planners, and of Redis. Clients run on the same machine and are not counted.
- Memory: resident, of all planners with their solvers; and what Redis says it uses at the end.
- Late: steps that began late, because the step of the job before had not ended.

Writes `benchmarks/results/many_jobs.json`, with the load average of the machine at the end of each case.
"""

import argparse
import asyncio
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc.aio
import numpy as np
from redis import Redis
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.service import free_port, metric, start_planner
from benchmarks.status import cpu_s
from relibra.planning import Cluster, ExecutionReport, Model, Phase, PlanParams, Schedule
from relibra.planning.load import narrow_counts
from relibra.store import EmbeddedRedis
from relibra.v1 import execution_pb2_grpc, job_pb2_grpc, plan_pb2, plan_pb2_grpc, routing_pb2_grpc
from relibra.wire import messages
from relibra.wire.channel import OPTIONS
from relibra.wire.launch import this_launch
from relibra.wire.routing import encode_sequence

CASES = ("1x20", "1x200", "3x200")
MODEL = Model(num_layers=8, num_experts=64, top_k=4)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
NUM_MICRO_BATCHES = 16
NUM_SEQUENCES = 64
NUM_TOKENS = 1024
SCHEDULE = Schedule.round_robin(NUM_SEQUENCES, NUM_MICRO_BATCHES, CLUSTER)
IDS = [f"seq-{index}" for index in range(NUM_SEQUENCES)]
NUM_CELLS = NUM_MICRO_BATCHES * MODEL.num_layers
_START_TIMEOUT_S = 120.0
_PLAN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What all processes of the planners and Redis have used so far."""

    planners_cpu_s: float
    redis_cpu_s: float
    redis_bytes: int

    @classmethod
    def now(cls, planners: list[int], redis: EmbeddedRedis) -> "Usage":
        """Measure the processes of planners, which have these ids, and Redis."""
        with Redis.from_url(redis.url) as client:
            used = client.info("memory")["used_memory"]
        return cls(sum(map(cpu_s, _with_children(planners))), cpu_s(redis.pid), used)


def _with_children(pids: list[int]) -> list[int]:
    """Return processes and all their descendants."""
    for pid in pids:
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        pids = [*pids, *_with_children([int(child) for task in tasks for child in task.read_text().split()])]
    return pids


def _resident_mib(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in _with_children(pids))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _counts() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    share_LE = rng.dirichlet(np.full(MODEL.num_experts, 0.5), size=MODEL.num_layers)
    counts_SLE = rng.multinomial(NUM_TOKENS * MODEL.top_k, share_LE, size=(NUM_SEQUENCES, MODEL.num_layers))
    return [narrow_counts(counts_LE.astype(np.uint32)) for counts_LE in counts_SLE]


class _Job:
    """One job: its driver, its rollout worker and its ranks, over one connection."""

    def __init__(self, name: str, address: str, counts: list[np.ndarray]) -> None:
        self._name, self._counts = name, counts
        self.channel = grpc.aio.insecure_channel(address, [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
        self._plans = plan_pb2_grpc.PlanServiceStub(self.channel)

    async def register(self) -> None:
        request = messages.encode_registration(self._name, MODEL, CLUSTER, PlanParams(), this_launch())
        response = await job_pb2_grpc.JobServiceStub(self.channel).RegisterJob(request, timeout=_PLAN_TIMEOUT_S)
        self._epoch = response.epoch

    async def step(self, step: int) -> float:
        """Take a step; return the seconds from its schedule until the first rank holds its plan."""
        encoded = zip(IDS, self._counts, strict=True)
        sequences = [
            encode_sequence(ordinal, self._name, step, name, NUM_TOKENS, counts_LE, epoch=self._epoch)
            for ordinal, (name, counts_LE) in enumerate(encoded, start=1)
        ]
        async for answer in routing_pb2_grpc.RoutingServiceStub(self.channel).ReportRouting(sequences):
            assert not answer.refused, answer
        began_at = time.perf_counter()
        await self._plans.SubmitSchedule(
            plan_pb2.SubmitScheduleRequest(
                job_id=self._name,
                step=step,
                schedule=messages.encode_schedule(IDS, SCHEDULE),
                epoch=self._epoch,
            ),
            timeout=_PLAN_TIMEOUT_S,
        )
        first = await self._fetch(step, 0)
        plan_s = time.perf_counter() - began_at
        others = await asyncio.gather(*(self._fetch(step, rank) for rank in range(1, CLUSTER.num_ranks)))
        await asyncio.gather(*(self._report(step, rank, plan) for rank, plan in enumerate([first, *others])))
        return plan_s

    async def _fetch(self, step: int, rank: int) -> plan_pb2.StepPlan:
        wait_ms = int(_PLAN_TIMEOUT_S * 1000)
        request = plan_pb2.FetchPlanRequest(
            job_id=self._name, step=step, ep_rank=rank, wait_ms=wait_ms, epoch=self._epoch
        )
        while True:
            try:
                return (await self._plans.FetchPlan(request, timeout=2 * _PLAN_TIMEOUT_S)).plan
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:  # the plan is not there yet
                    raise

    async def _report(self, step: int, rank: int, plan: plan_pb2.StepPlan) -> None:
        report = ExecutionReport(
            step=step,
            phase=Phase.UPDATE,
            ep_group=0,
            ep_rank=rank,
            applied=messages.decode_plan_id(plan.id),
            reason="as planned",
            realised_load_ML=np.full((NUM_MICRO_BATCHES, MODEL.num_layers), NUM_TOKENS, dtype=np.int64),
            reorder_sent_bytes=0,
            replica_sent_bytes=0,
            plan_wait_s=0.0,
        )
        executions = execution_pb2_grpc.ExecutionServiceStub(self.channel)
        await executions.ReportExecution(
            messages.encode_execution_report(self._name, report, self._epoch), timeout=_PLAN_TIMEOUT_S
        )


async def _train(job: _Job, first_at: float, interval_s: float, num_steps: int) -> tuple[list[float], int]:
    """Take steps at their times; return the wait for each plan after the first, and how many steps were late."""
    plans_s, num_late = [], 0
    for number in range(num_steps + 1):
        wait_s = first_at + number * interval_s - time.perf_counter()
        num_late += number > 0 and wait_s < 0
        await asyncio.sleep(max(0.0, wait_s))
        plans_s.append(await job.step(number + 1))
    return plans_s[1:], num_late


async def _measure(
    addresses: list[str], num_jobs: int, interval_s: float, num_steps: int, usage: partial[Usage]
) -> dict[str, float]:
    counts = _counts()
    jobs = [_Job(f"job-{number}", addresses[number % len(addresses)], counts) for number in range(num_jobs)]
    await asyncio.gather(*(job.register() for job in jobs))
    began_at = time.perf_counter()
    training = [
        asyncio.create_task(_train(job, began_at + number / num_jobs * interval_s, interval_s, num_steps))
        for number, job in enumerate(jobs)
    ]
    await asyncio.sleep(began_at + interval_s - time.perf_counter())
    before, measured_at = usage(), time.perf_counter()
    trained = await asyncio.gather(*training)
    after, measured_s = usage(), time.perf_counter() - measured_at
    await asyncio.gather(*(job.channel.close() for job in jobs))
    plans_s = [each for plans, _ in trained for each in plans]
    return {
        "steps_per_s": len(plans_s) / measured_s,
        "planner_cores": (after.planners_cpu_s - before.planners_cpu_s) / measured_s,
        "planner_cpu_ms_per_step": 1e3 * (after.planners_cpu_s - before.planners_cpu_s) / len(plans_s),
        "redis_cores": (after.redis_cpu_s - before.redis_cpu_s) / measured_s,
        "redis_mib": after.redis_bytes / 2**20,
        "redis_kib_per_step": (after.redis_bytes - before.redis_bytes) / 1024 / len(plans_s),
        "plan_p50_ms": 1e3 * float(np.percentile(plans_s, 50)),
        "plan_p99_ms": 1e3 * float(np.percentile(plans_s, 99)),
        "load_average": os.getloadavg()[0],
        "num_late": sum(num_late for _, num_late in trained),
    }


def _run(num_planners: int, num_jobs: int, interval_s: float, num_steps: int) -> dict[str, float]:
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        redis = running.enter_context(EmbeddedRedis(folder / "redis"))
        ports = [free_port() for _ in range(num_planners)]
        folders = [folder / f"planner-{port}" for port in ports]
        for each in folders:
            each.mkdir()
        with ThreadPoolExecutor() as starting:
            started = list(starting.map(partial(start_planner, redis.url), ports, folders))
        for process, _ in started:
            running.callback(process.wait)
            running.callback(process.terminate)
        pids, addresses = [process.pid for process, _ in started], [address for _, address in started]
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not all(metric(port, "relibra_planner_ready") for port in ports):
            assert time.monotonic() < deadline, "a planner is not ready"
            time.sleep(0.1)
        usage = partial(Usage.now, pids, redis)
        measured = asyncio.run(_measure(addresses, num_jobs, interval_s, num_steps, usage))
        return {"planners": num_planners, "jobs": num_jobs, **measured, "planner_mib": _resident_mib(pids)}


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="PLANNERSxJOBS")
    parser.add_argument("--interval", type=float, default=30.0, help="seconds between two steps of a job")
    parser.add_argument("--steps", type=int, default=1, help="measured steps of each job")
    arguments = parser.parse_args()
    columns = ("planners", "jobs", "steps_per_s", "planner_cores", "planner_cpu_ms_per_step", "planner_mib",
               "redis_cores", "redis_mib", "redis_kib_per_step", "plan_p50_ms", "plan_p99_ms", "num_late",
               "load_average")  # fmt: skip
    table = Table(*columns, title=f"steps of {NUM_CELLS} cells on {os.cpu_count()} cores, clients included")
    rows = []
    for case in arguments.cases:
        num_planners, num_jobs = map(int, case.split("x"))
        row = _run(num_planners, num_jobs, arguments.interval, arguments.steps)
        print(case, row, flush=True)
        rows.append({name: round(row[name], 3) for name in columns})
        table.add_row(*(f"{row[name]:.3g}" for name in columns))
    Console(width=180).print(table)
    results.write(
        "many_jobs",
        rows,
        interval_s=arguments.interval,
        steps=arguments.steps,
        cells=NUM_CELLS,
        sequences=NUM_SEQUENCES,
    )


if __name__ == "__main__":
    main()
