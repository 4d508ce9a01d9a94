"""Measure the status service on a large job: the time of every endpoint, the weight and first paint of pages.

    python -m benchmarks.status

The job has 94 layers x 128 experts on 8 x 8 ranks, 32 micro-batches per step (3008 cells), and 100 planned steps for
which 64 ranks reported both phases. Two solved plans are published in turn. One client with one connection asks one
status process on the same machine.

- *Cold*: each request is for a step whose plan is not in memory.
- *Warm*: each request is for the newest step.
- *CPU*: the CPU time that the status process spends on a request (warm, unless marked cold). Other work on the machine
  changes this figure less.
- Pages: Chromium loads them over loopback with an empty cache; weight is the bytes on the wire.
"""

import argparse
import asyncio
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.planning import Cluster, ExecutionReport, Model, Phase, Plan, PlanParams, Schedule, StepLoad
from relibra.planning.solve import solve
from relibra.store import EmbeddedRedis, EncodedPlan, Store

MODEL = Model(
    num_layers=94,
    num_experts=128,
    top_k=8,
    expert_weight_size_bytes=36 << 20,
    expert_state_size_bytes=252 << 20,
)
CLUSTER = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
NUM_MICRO_BATCHES = 32
NUM_PLANS = 2
TARGET_MS = 100.0
JOB = "/jobs/large"
IDS = [f"sequence-{index}" for index in range(NUM_MICRO_BATCHES * CLUSTER.num_ranks)]
SCHEDULE = Schedule.round_robin(len(IDS), NUM_MICRO_BATCHES, CLUSTER)

ENDPOINTS = {
    "job": JOB,
    "steps": f"{JOB}/steps",
    "step, explained": f"{JOB}/steps/{{step}}/explain",
    "plan": f"{JOB}/steps/{{step}}/plan",
    "plan summary": f"{JOB}/steps/{{step}}/plan/summary",
    "plan file": f"{JOB}/steps/{{step}}/plan.npz",
    "heat map, all": f"{JOB}/steps/{{step}}/heatmap",
    "heat map, one row": f"{JOB}/steps/{{step}}/heatmap?row=3",
    "cell": f"{JOB}/steps/{{step}}/cells/3/40",
    "diff": f"{JOB}/steps/{{step}}/diff?against=1",
    "execution": f"{JOB}/steps/{{step}}/execution",
    "history": f"{JOB}/history",
    "history of an expert": f"{JOB}/history/layers/3/experts/5",
    "history of a rank": f"{JOB}/history/ranks/5",
}
PAGES = {"jobs": "/", "job": JOB, "step": f"{JOB}/steps/{{step}}", "cell": f"{JOB}/steps/{{step}}/cells/3/40"}


_ALL_CHARTS_DRAWN = "[...document.querySelectorAll('[data-chart] .state')].every((state) => !state.textContent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The times of one endpoint, in milliseconds."""

    cold_first: float
    cold_p50: float
    cold_p99: float
    warm_p50: float
    warm_p99: float
    first_byte_p99: float
    """The time to the first byte of a warm request; the rest of `warm_p99` is the transfer."""
    cold_cpu: float
    cpu: float
    size_bytes: int


def make_plan(seed: int) -> Plan:
    """Return the plan of a step with skewed random loads."""
    rng = np.random.default_rng(seed)
    weight_LE = np.exp(rng.normal(0, 1, (MODEL.num_layers, MODEL.num_experts)))
    weight_LE *= 4096 * MODEL.top_k / weight_LE.sum(axis=1, keepdims=True)
    counts = [rng.poisson(weight_LE * np.exp(rng.normal(0, 0.5, weight_LE.shape))).astype(np.uint16) for _ in IDS]
    load = StepLoad.of(np.stack(counts), SCHEDULE, CLUSTER)
    return solve(load, SCHEDULE, MODEL, CLUSTER, PlanParams(), num_threads=2)


async def fill(url: str, num_steps: int, console: Console) -> None:
    """Write the job, its plans and its reports to the store."""
    async with Store.open(url) as store:
        await store.check()
        job = await store.register_job("large", MODEL, CLUSTER, PlanParams())
        plans = [make_plan(seed) for seed in range(NUM_PLANS)]
        encoded = [EncodedPlan.of(plan) for plan in plans]
        console.print(f"{NUM_PLANS} plans of {sum(map(len, encoded[0].fields.values())) / 1e6:.1f} MB; publishing")
        for step in range(1, num_steps + 1):
            await store.put_schedule(job, step, IDS, SCHEDULE)
            lease = await store.take_lease("large", 60)
            assert lease is not None
            plan = plans[step % NUM_PLANS]
            plan_id = await store.publish_plan(lease, encoded[step % NUM_PLANS])
            for phase in Phase:
                for rank in range(CLUSTER.num_ranks):
                    report = ExecutionReport(
                        step=step,
                        phase=phase,
                        ep_group=0,
                        ep_rank=rank,
                        applied=plan_id,
                        reason="all ranks hold it",
                        realised_load_ML=plan.rank_loads_MLR[:, :, rank],
                        reorder_sent_bytes=1,
                        replica_sent_bytes=1,
                        plan_wait_s=0.01,
                    )
                    await store.put_report(job, report)


def start(url: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a status process; return it and its address."""
    ready_file = folder / "status.json"
    ready_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "relibra.cli", "status", "--redis-url", url, "--port", "0"]
    process = subprocess.Popen([*command, "--ready-file", str(ready_file)], stderr=subprocess.DEVNULL)
    while not ready_file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    return process, json.loads(ready_file.read_text())["status"]


def measure(address: str, pid: int, path: str, num_steps: int, num_cold: int, num_warm: int) -> Timing:
    """Time one endpoint."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)

    def ask(step: int) -> tuple[float, float, int]:
        started = time.perf_counter()
        connection.request("GET", f"/v1{path.format(step=step)}")
        answer = connection.getresponse()
        size_bytes = len(answer.read(1))
        first_byte = time.perf_counter() - started
        size_bytes += len(answer.read())
        assert answer.status == 200, (path, answer.status)
        return 1e3 * (time.perf_counter() - started), 1e3 * first_byte, size_bytes

    # Later steps come first: the previous endpoint left only the newest step in memory.
    cpu_before = cpu_s(pid)
    cold = [ask(step)[0] for step in range(num_steps - 1, max(1, num_steps - 1 - num_cold), -1)]
    cold_cpu_s = cpu_s(pid) - cpu_before
    ask(num_steps)
    cpu_before = cpu_s(pid)
    warm, first_bytes, sizes = zip(*(ask(num_steps) for _ in range(num_warm)), strict=True)
    return Timing(
        cold_first=cold[0],
        cold_p50=float(np.percentile(cold, 50)),
        cold_p99=float(np.percentile(cold, 99)),
        warm_p50=float(np.percentile(warm, 50)),
        warm_p99=float(np.percentile(warm, 99)),
        first_byte_p99=float(np.percentile(first_bytes, 99)),
        cold_cpu=1e3 * cold_cpu_s / len(cold),
        cpu=1e3 * (cpu_s(pid) - cpu_before) / num_warm,
        size_bytes=sizes[-1],
    )


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def paint(address: str, num_steps: int) -> list[dict[str, object]]:
    """Load every page with an empty cache; return weights and times."""
    from playwright.sync_api import sync_playwright

    rows: list[dict[str, object]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path in PAGES.items():
            page = browser.new_context(base_url=address).new_page()
            client = page.context.new_cdp_session(page)
            client.send("Network.enable")
            weights: dict[str, int] = {}
            client.on(
                "Network.loadingFinished", lambda e, w=weights: w.update({e["requestId"]: e["encodedDataLength"]})
            )
            page.goto(path.format(step=num_steps), wait_until="load")
            document = page.evaluate("performance.getEntriesByType('navigation')[0].transferSize")
            page.wait_for_function(_ALL_CHARTS_DRAWN)
            charts_ms = page.evaluate("performance.now()")
            painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            rows.append(
                {
                    "page": name,
                    "document_bytes": document,
                    "total_bytes": sum(weights.values()),
                    "first_paint_ms": round(painted_ms, 1),
                    "charts_drawn_ms": round(charts_ms, 1),
                }
            )
            page.context.close()
        browser.close()
    return rows


def main() -> None:
    """Measure, print the tables and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm", type=int, default=200, help="warm requests per endpoint")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="relibra-") as name, EmbeddedRedis(Path(name)) as redis:
        asyncio.run(fill(redis.url, options.steps, console))
        process, address = start(redis.url, Path(name))
        try:
            table = Table(title=f"{options.steps} steps of 3008 cells on 64 ranks; milliseconds")
            names = Timing.__slots__[:-1]
            for column in ("endpoint", "KiB", *names):
                table.add_column(column, justify="left" if column == "endpoint" else "right")
            rows: list[dict[str, object]] = []
            for each, path in ENDPOINTS.items():
                num_cold, num_warm = (5, 20) if path.endswith("npz") else (20, options.warm)
                timing = measure(address, process.pid, path, options.steps, num_cold, num_warm)
                figures = [getattr(timing, name) for name in names]
                table.add_row(each, f"{timing.size_bytes / 1024:.0f}", *(f"{figure:.1f}" for figure in figures))
                rows.append({"endpoint": each, **{n: getattr(timing, n) for n in Timing.__slots__}})
            console.print(table)
            pages = paint(address, options.steps) if shutil.which("chromium") else []
            for page in pages:
                console.print(page)
            resident = Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0]
            console.print(f"target: p99 <= {TARGET_MS:.0f} ms; peak memory of the service {int(resident) // 1024} MiB")
        finally:
            process.terminate()
            process.wait()
    results.write(
        "status",
        rows + pages,
        steps=options.steps,
        cells=3008,
        ranks=CLUSTER.num_ranks,
        load_average=[round(each, 1) for each in os.getloadavg()],
        peak_memory_mib=int(resident) // 1024,
    )


if __name__ == "__main__":
    main()
