"""What one planner and one status service spend on many jobs at once, and its growth with their number.

    python -m benchmarks.jobs [--jobs 10 100]

Starts `relibra up` and registers simulated jobs of 8 layers x 64 experts on 8 ranks. Every job keeps a stream of
reports open. In a round it reports 64 sequences, submits their schedule, and two agents fetch the plan. All jobs are in
a round at once, as far as 16 threads can drive them. Clients share the machine's cores with the services.

- `planner_ms`, `solver_ms`, `redis_ms`: processor time of these processes per step.
- `plan_p50_s`, `plan_p99_s`: from submitting a schedule to holding its plan.
- `idle_percent`: processor time of planner, Redis and status service while all jobs are registered and nobody calls, in
  percent of one core.
- `scrape_ms`, `overview_ms`, `queue_ms`: least time of an answer of the status service.
- `planner_mib`, `redis_mib`: memory of the planner process and data in Redis after the rounds.

`exponent_...` is the power of the number of jobs with which a figure grew since the row before. Writes
`benchmarks/results/jobs.json`.
"""

import argparse
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from math import log
from pathlib import Path

import numpy as np
import psutil
import redis

from benchmarks import results
from relibra.demo.services import OwnServices, Services
from relibra.planning import Cluster, Model, Schedule
from relibra.planning.load import narrow_counts
from relibra.planning.plan import Level
from relibra.rollout.reporter import RolloutReporter
from relibra.wire.client import PlannerClient
from relibra.wire.launch import ATTEMPT_VARIABLE

_MODEL = Model(num_layers=8, num_experts=64, top_k=4)
_CLUSTER = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)
_NUM_SEQUENCES = 64
_SCHEDULE = Schedule.round_robin(_NUM_SEQUENCES, 8, _CLUSTER)
_NUM_AGENTS = 2
_NUM_THREADS = 16
_MIN_STEPS = 600
"""The benchmark measures at least so many steps, in as many rounds as that takes."""
_IDLE_S = 10.0
_GROWING = ("planner_ms", "solver_ms", "redis_ms", "idle_percent", "scrape_ms", "overview_ms", "queue_ms", "redis_mib")


class _Job:
    """A simulated job: a driver, a rollout worker with a stream of its own, and two agents, on shared connections."""

    def __init__(self, job_id: str, address: str, client: PlannerClient, counts_SLE: np.ndarray) -> None:
        self._id = job_id
        self._client = client
        self._counts_SLE = counts_SLE
        client.register_job(job_id, _MODEL, _CLUSTER)
        self._reporter = RolloutReporter(address, job_id, num_experts=_MODEL.num_experts)

    def take_step(self, step: int) -> float:
        """Report, schedule and fetch a step; return the seconds from its schedule to its plan."""
        ids = [f"{step}-{index}" for index in range(_NUM_SEQUENCES)]
        for name, counts_LE in zip(ids, self._counts_SLE, strict=True):
            num_rows = int(counts_LE[0].sum()) // _MODEL.top_k
            self._reporter.report_counts(step, name, counts_LE, num_rows)  # counted before, so clients cost less
        assert self._reporter.flush(timeout_s=600.0) == _NUM_SEQUENCES
        began_s = time.perf_counter()
        self._client.submit_schedule(self._id, step, ids, _SCHEDULE)
        waited_s = 0.0
        for _ in range(_NUM_AGENTS):
            while True:
                plan = self._client.fetch_plan(self._id, step, _MODEL, wait_s=60.0)
                if plan is not None and plan.step == step and plan.level is Level.MICRO_BATCHES:
                    break
            waited_s = waited_s or time.perf_counter() - began_s
        return waited_s

    def close(self) -> None:
        """Let the rollout worker end."""
        self._reporter.close()


def _processes(folder: Path) -> dict[str, list[psutil.Process]]:
    """Return the processes of each part; the solvers are children of the planner."""
    pids = json.loads((folder / "ready.json").read_text())["pids"]
    planner = psutil.Process(pids["planner"])
    return {
        "planner": [planner],
        "solver": planner.children(recursive=True),
        "redis": [psutil.Process(pids["redis"])],
        "status": [psutil.Process(pids["status"])],
    }


def _used_s(parts: dict[str, list[psutil.Process]]) -> dict[str, float]:
    used = {name: [process.cpu_times() for process in processes] for name, processes in parts.items()}
    return {name: sum(times.user + times.system for times in of_part) for name, of_part in used.items()}


def _least_ms(services: Services, path: str) -> float:
    times_s = []
    for _ in range(5):
        began_s = time.perf_counter()
        with urllib.request.urlopen(services.status_url + path, timeout=60.0) as answer:
            answer.read()
        times_s.append(time.perf_counter() - began_s)
    return min(times_s) * 1e3


@contextmanager
def _services() -> Iterator[tuple[Services, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with OwnServices(folder) as services:
            yield services, folder


def _measure(num_jobs: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    pick_E = rng.dirichlet(np.full(_MODEL.num_experts, 0.3))
    counts_SLE = narrow_counts(rng.multinomial(_MODEL.top_k * 512, pick_E, size=(_NUM_SEQUENCES, _MODEL.num_layers)))
    with _services() as (services, folder), ExitStack() as stack:
        clients = [stack.enter_context(PlannerClient(services.planner_address, timeout_s=120.0)) for _ in range(8)]
        threads = stack.enter_context(ThreadPoolExecutor(_NUM_THREADS))
        address = services.planner_address
        jobs = list(
            threads.map(
                lambda index: _Job(f"job-{index}", address, clients[index % len(clients)], counts_SLE), range(num_jobs)
            )
        )
        for job in jobs:
            stack.callback(job.close)
        list(threads.map(lambda job: job.take_step(1), jobs))  # streams are open and code is warm from here on
        parts = _processes(folder)
        num_rounds = -(-_MIN_STEPS // num_jobs)
        before, began_s = _used_s(parts), time.perf_counter()
        waits_s = [
            wait_s
            for round in range(num_rounds)
            for wait_s in threads.map(lambda job, step=round + 2: job.take_step(step), jobs)
        ]
        rounds_s = time.perf_counter() - began_s
        used = {name: seconds - before[name] for name, seconds in _used_s(parts).items()}
        time.sleep(_IDLE_S)  # what follows the last step, such as its summary, is not idling
        before = _used_s(parts)
        time.sleep(_IDLE_S)
        idle = {name: seconds - before[name] for name, seconds in _used_s(parts).items()}
        url = json.loads((folder / "ready.json").read_text())["redis"]
        with redis.Redis.from_url(url) as store:
            redis_bytes = store.info("memory")["used_memory"]
        num_steps = num_jobs * num_rounds
        return {
            "num_jobs": num_jobs,
            "num_steps": num_steps,
            "steps_per_s": num_steps / rounds_s,
            **{f"{name}_ms": used[name] / num_steps * 1e3 for name in ("planner", "solver", "redis")},
            "plan_p50_s": float(np.percentile(waits_s, 50)),
            "plan_p99_s": float(np.percentile(waits_s, 99)),
            "idle_percent": sum(idle.values()) / _IDLE_S * 100,
            **{f"idle_{name}_percent": seconds / _IDLE_S * 100 for name, seconds in idle.items()},
            "scrape_ms": _least_ms(services, "/metrics"),
            "overview_ms": _least_ms(services, "/"),
            "queue_ms": _least_ms(services, "/v1/queue"),
            "planner_mib": sum(process.memory_info().rss for process in parts["planner"]) / 2**20,
            "redis_mib": redis_bytes / 2**20,
        }


def _tell_growth(rows: list[dict[str, float]]) -> None:
    for before, row in pairwise(rows):
        more = log(row["num_jobs"] / before["num_jobs"])
        for name in _GROWING:
            if before[name] and row[name]:
                row[f"exponent_{name}"] = log(row[name] / before[name]) / more


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", help="numbers of jobs, without writing results")
    arguments = parser.parse_args()
    os.environ |= {ATTEMPT_VARIABLE: "benchmark", "RELIBRA_MAX_JOBS": "1000"}
    rows = []
    for number in arguments.jobs or (10, 30, 100, 300, 1000):
        rows.append(_measure(number))
        print(json.dumps(rows[-1]), flush=True)
    _tell_growth(rows)
    results.show(f"many jobs, one planner with one solver on {os.cpu_count()} cores, clients included", rows)
    if arguments.jobs is None:
        results.write("jobs", rows, load_average=[round(each, 1) for each in os.getloadavg()])


if __name__ == "__main__":
    main()
