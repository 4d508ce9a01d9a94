"""Measure ingest, planning and fetch of one planner process on this machine.

    python -m benchmarks.service [FOLDER OF TRACES]

Starts an embedded Redis (append-only file on) and one planner. Clients share the machine's cores with the planner.

- Ingest: sequences of 48 layers x 128 experts go through one reporter per process, until all are durable.
- Plan: one step of 58 layers x 256 experts on 8 x 8 ranks with 32 micro-batches (1856 cells). Its loads are mixtures of
  the workloads in `deepseek-v3_counts_dev.npz`. The folder of traces defaults to RELIBRA_TRACES, or to
  `../shared/traces`.
- Fetch: 64 agents, each with a connection of its own, ask for that plan at the same moment, many times. A fetch ends
  when its bytes have arrived; decoding is timed separately. Then 512 agents ask, once without authentication, and once
  with the token of one job, whose calls share the turns of that job.

Writes `benchmarks/results/service.json`, with the load of the machine.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.workload_mix import mix_workloads
from relibra.planning import Cluster, Model, Schedule
from relibra.planning.load import narrow_counts
from relibra.rollout.outbox import CountedSequence
from relibra.rollout.reporter import RolloutReporter
from relibra.store import EmbeddedRedis, Role, Store
from relibra.v1 import plan_pb2
from relibra.wire.channel import OPTIONS
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.launch import ATTEMPT_VARIABLE
from relibra.wire.messages import decode_step_plan

INGEST_MODEL = Model(num_layers=48, num_experts=128, top_k=8)
INGEST_CLUSTER = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)
NUM_INGESTED = 8000
PLAN_MODEL = Model(num_layers=58, num_experts=256, top_k=8)
PLAN_CLUSTER = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
NUM_MICRO_BATCHES = 32
NUM_PLANNED = 2048
NUM_AGENTS = 64
NUM_MANY_AGENTS = 512
NUM_ROUNDS = 30


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start_planner(
    redis_url: str, metrics_port: int, folder: Path, auth: str = "none"
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a planner without a limit on ingest; return its process and its address."""
    ready_file = folder / f"ready-{auth}.json"
    command = [sys.executable, "-m", "relibra.cli", "planner", "--redis-url", redis_url, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--metrics-port", str(metrics_port), "--ready-file", str(ready_file)],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "planner.log").open("wb"),
        env=os.environ | {"RELIBRA_MAX_INGEST_BYTES_PER_S": str(1 << 40), "RELIBRA_AUTH": auth},
    )
    while not ready_file.exists():
        assert process.poll() is None, (folder / "planner.log").read_text()
        time.sleep(0.05)
    return process, json.loads(ready_file.read_text())["planner"]


def metric(port: int, name: str) -> float:
    """Return a metric without labels of the service whose metrics are on a port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.M)
    assert found, name
    return float(found[1])


def _report(address: str, job_id: str, step: int, counts_SLE: np.ndarray, first: int, queue: Any) -> None:
    """Report finished counts, so that the time contains no counting."""
    reporter = RolloutReporter(address, job_id, num_experts=counts_SLE.shape[-1], buffer_size_bytes=1 << 31)
    top_k = 8
    started = time.perf_counter()
    for index, counts_LE in enumerate(counts_SLE):
        num_rows = int(counts_LE[0].sum()) // top_k
        counted = CountedSequence(
            step=step,
            sequence_id=f"seq-{first + index}",
            num_rows=num_rows,
            counts_LE=narrow_counts(counts_LE),
            policy_versions=None,
        )
        reporter._outbox.put(counted)  # type: ignore[arg-type]
    reporter._start()
    assert reporter.flush(timeout_s=300) == len(counts_SLE)
    queue.put(time.perf_counter() - started)
    reporter.close()


def _report_at_once(address: str, job_id: str, step: int, parts: Sequence[np.ndarray]) -> float:
    """Report each part from a process of its own, all at once; return the seconds of the slowest process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    first_of_part = accumulate((len(part) for part in parts), initial=0)
    processes = [
        context.Process(target=_report, args=(address, job_id, step, counts_SLE, first, queue))
        for counts_SLE, first in zip(parts, first_of_part, strict=False)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a reporter of {job_id} ended with status {process.exitcode}: see its error above")
    return max(queue.get() for _ in processes)


def _ingest(address: str, num_processes: int) -> float:
    """Return the sequences per second that become durable."""
    job_id = f"ingest-{num_processes}"
    with PlannerClient(address) as client:
        client.register_job(job_id, INGEST_MODEL, INGEST_CLUSTER)
    rng = np.random.default_rng(0)
    one_LE = np.stack([rng.multinomial(8 * 1024, rng.dirichlet(np.ones(128))) for _ in range(48)]).astype(np.uint16)
    counts_SLE = np.repeat(one_LE[None], NUM_INGESTED // num_processes, axis=0)
    slowest_s = _report_at_once(address, job_id, 1, [counts_SLE] * num_processes)
    return num_processes * len(counts_SLE) / slowest_s


def _plan(address: str, folder: Path) -> float:
    """Let the planner plan the large step; return the seconds from submitting the schedule to holding the plan."""
    with np.load(folder / "deepseek-v3_counts_dev.npz") as file:
        expert_counts_WLE = file["expert_counts"]
    counts_SLE = mix_workloads(
        expert_counts_WLE,
        num_sequences=NUM_PLANNED,
        tokens_per_sequence=8192 * PLAN_CLUSTER.num_ranks * NUM_MICRO_BATCHES // NUM_PLANNED,
        top_k=PLAN_MODEL.top_k,
        seed=0,
        num_experts=PLAN_MODEL.num_experts,
        num_layers=PLAN_MODEL.num_layers,
    )
    with PlannerClient(address, timeout_s=60) as client:
        client.register_job("plan", PLAN_MODEL, PLAN_CLUSTER)
        _report_at_once(address, "plan", 1, [counts_SLE])
        index_S = np.arange(NUM_PLANNED, dtype=np.int32)
        schedule = Schedule(
            micro_batch_S=index_S % NUM_MICRO_BATCHES,
            source_rank_S=index_S // NUM_MICRO_BATCHES % PLAN_CLUSTER.num_ranks,
            ep_group_S=index_S * 0,
        )
        started = time.perf_counter()
        client.submit_schedule("plan", 1, [f"seq-{index}" for index in index_S], schedule)
        client.fetch_plan("plan", 1, PLAN_MODEL, wait_s=60)
        return time.perf_counter() - started


async def _trainer_token(redis_url: str) -> str:
    async with Store.open(redis_url) as store:
        return (await store.create_token("plan", Role.TRAINER))[1]


async def _fetch(
    address: str, num_agents: int = NUM_AGENTS, token: str = "", num_rounds: int = NUM_ROUNDS
) -> tuple[list[float], list[bytes]]:
    channels = [
        grpc.aio.insecure_channel(address, options=[*OPTIONS, ("grpc.use_local_subchannel_pool", 1)])
        for _ in range(num_agents)
    ]
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with PlannerClient(address, credentials=Credentials(token=token or None)) as client:
        epoch = client.join_attempt("plan")
    calls = [
        channel.unary_unary(
            "/relibra.v1.PlanService/FetchPlan", request_serializer=plan_pb2.FetchPlanRequest.SerializeToString
        )
        for channel in channels
    ]

    async def fetch(rank: int) -> tuple[float, bytes]:
        started = time.perf_counter()
        request = plan_pb2.FetchPlanRequest(job_id="plan", step=1, ep_rank=rank % PLAN_CLUSTER.num_ranks, epoch=epoch)
        answer = await calls[rank](request, timeout=30, metadata=metadata)
        return time.perf_counter() - started, answer

    gc.freeze()  # one process plays all agents, and a garbage collection would stop them all at once
    times = []
    for round_ in range(num_rounds + 2):
        answers = await asyncio.gather(*(fetch(rank) for rank in range(num_agents)))
        if round_ >= 2:
            times += [each for each, _ in answers]
    for channel in channels:
        await channel.close()
    return times, [answer for _, answer in answers]


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=results.TRACES)
    arguments = parser.parse_args()
    table = Table("what", "figure", "target", title=f"one planner on {os.cpu_count()} cores, clients included")
    rows: list[dict[str, object]] = []

    def tell(what: str, figure: float, unit: str, target: str = "") -> None:
        table.add_row(what, f"{figure:.4g} {unit}", target)
        rows.append({"what": what, "figure": round(figure, 4), "unit": unit, "target": target})

    os.environ[ATTEMPT_VARIABLE] = "benchmark"  # for the processes that report
    with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder) / "redis") as redis:
        port = free_port()
        planner, address = start_planner(redis.url, port, Path(folder))
        # Started now, because its solver takes a core for half a minute while it compiles.
        guarded, guarded_address = start_planner(redis.url, free_port(), Path(folder), auth="required")
        try:
            for num_processes in (1, 2):
                rate = _ingest(address, num_processes)
                tell(f"ingest, {num_processes} reporter process(es)", rate, "sequences/s", ">= 2000")
            tell("schedule submitted to plan in hand", _plan(address, arguments.folder), "s")
            for name, what in (("solve", "read, solve, check, encode"), ("publish", "publish")):
                tell(what, metric(port, f"relibra_planner_{name}_seconds_sum"), "s")
            times, answers = asyncio.run(_fetch(address))
            started = time.perf_counter()
            for answer in answers:
                decode_step_plan(plan_pb2.FetchPlanResponse.FromString(answer).plan, PLAN_MODEL)
            decode_s = (time.perf_counter() - started) / len(answers)
            tell(f"fetch, {NUM_AGENTS} agents at once: p50", float(np.percentile(times, 50)) * 1e3, "ms")
            tell(f"fetch, {NUM_AGENTS} agents at once: p99", float(np.percentile(times, 99)) * 1e3, "ms", "<= 50 ms")
            tell("size of a fetch", sum(map(len, answers)) / len(answers) / 1024, "KiB")
            tell("decoding, at the agent", decode_s * 1e3, "ms")
            token = asyncio.run(_trainer_token(redis.url))
            for who, asked, with_token in (("no token", address, ""), ("one job", guarded_address, token)):
                times, _ = asyncio.run(_fetch(asked, NUM_MANY_AGENTS, with_token, NUM_ROUNDS // 3))
                for percentile in (50, 99):
                    what = f"fetch, {NUM_MANY_AGENTS} agents at once, {who}: p{percentile}"
                    tell(what, float(np.percentile(times, percentile)) * 1e3, "ms")
        finally:
            for process in (planner, guarded):
                process.terminate()
                process.wait()
    Console().print(table)
    results.write("service", rows, load_average=[round(each, 1) for each in os.getloadavg()])


if __name__ == "__main__":
    main()
