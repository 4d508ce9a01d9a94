"""Measure ingest, planning and fetch of one planner process on this machine.

    python -m benchmarks.service

Starts `relibra up` without a limit on ingest. Clients share the machine's cores with the planner.

- Ingest: sequences of 48 layers x 128 experts go through one reporter per process, until all are durable.
- Plan: one step of 58 layers x 256 experts on 8 x 8 ranks with 32 micro-batches (1856 cells). Its loads are mixtures of
  the workloads in `deepseek-v3_counts_dev.npz`. The planner holds all counts. It gets the sequences, as when the last
  sample ends, and then their schedule, as when training begins.
- Pack: the first packing of gpt-oss-20b on 4 x 8 ranks, with prices, from asking to having the schedule.
- Fetch: 64 agents, each with a connection of its own, ask for that plan at the same moment, many times. A fetch ends
  when its bytes have arrived; decoding is timed separately.

Writes `benchmarks/results/service.json`, with the load of the machine.
"""

import asyncio
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc.aio
import numpy as np

from benchmarks import results
from benchmarks.workload_mix import mix_workloads
from relibra.demo.services import OwnServices
from relibra.evaluation import model_of
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule
from relibra.planning.plan import Level
from relibra.rollout.reporter import RolloutReporter
from relibra.routing import count_sequences, read_trace
from relibra.v1 import plan_pb2
from relibra.wire.channel import OPTIONS
from relibra.wire.client import PlannerClient
from relibra.wire.launch import ATTEMPT_VARIABLE
from relibra.wire.messages import decode_step_plan

_INGEST_MODEL = Model(num_layers=48, num_experts=128, top_k=8)
_INGEST_CLUSTER = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)
_NUM_INGESTED = 8000
_PLAN_MODEL = Model(num_layers=58, num_experts=256, top_k=8)
_PLAN_CLUSTER = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
_NUM_MICRO_BATCHES = 32
_NUM_PLANNED = 2048
_NUM_ROUNDS = 30
_PACKED_EXPERT_SIZE_BYTES = 3 * 2880 * 2880 * 2
_PACKED_TOKEN_SIZE_BYTES = 4 * 2880 * 2
"""In bf16 of gpt-oss-20b: dispatch and combine, forward and backward."""


def _report(address: str, job_id: str, counts_SLE: np.ndarray, first: int, queue: Any, top_k: int = 8) -> None:
    """Report finished counts, so that the time contains no counting."""
    reporter = RolloutReporter(address, job_id, num_experts=counts_SLE.shape[-1], buffer_size_bytes=1 << 31)
    began_s = time.perf_counter()
    for index, counts_LE in enumerate(counts_SLE):
        num_rows = int(counts_LE[0].sum()) // top_k
        reporter.report_counts(1, f"seq-{first + index}", counts_LE, num_rows)
    assert reporter.flush(timeout_s=300) == len(counts_SLE)
    queue.put(time.perf_counter() - began_s)
    reporter.close()


def _report_at_once(address: str, job_id: str, parts: Sequence[np.ndarray]) -> float:
    """Report each part from a process of its own, all at once; return the seconds of the slowest process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    first_of_part = accumulate((len(part) for part in parts), initial=0)
    processes = [
        context.Process(target=_report, args=(address, job_id, counts_SLE, first, queue))
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
        client.register_job(job_id, _INGEST_MODEL, _INGEST_CLUSTER)
    rng = np.random.default_rng(0)
    one_LE = np.stack([rng.multinomial(8 * 1024, rng.dirichlet(np.ones(128))) for _ in range(48)]).astype(np.uint16)
    counts_SLE = np.repeat(one_LE[None], _NUM_INGESTED // num_processes, axis=0)
    return num_processes * len(counts_SLE) / _report_at_once(address, job_id, [counts_SLE] * num_processes)


def _plan(address: str) -> tuple[float, float]:
    """Let the planner plan the large step twice: from its sequences alone, and from its micro-batches.

    Returns:
        The seconds from submitting the sequences, and then their schedule, to holding the plan.
    """
    with np.load(results.TRACES / "deepseek-v3_counts_dev.npz") as file:
        expert_counts_WLE = file["expert_counts"]
    counts_SLE = mix_workloads(
        expert_counts_WLE,
        num_sequences=_NUM_PLANNED,
        tokens_per_sequence=8192 * _PLAN_CLUSTER.num_ranks * _NUM_MICRO_BATCHES // _NUM_PLANNED,
        top_k=_PLAN_MODEL.top_k,
        seed=0,
        num_experts=_PLAN_MODEL.num_experts,
        num_layers=_PLAN_MODEL.num_layers,
    )
    schedule = Schedule.round_robin(_NUM_PLANNED, _NUM_MICRO_BATCHES, _PLAN_CLUSTER)
    with PlannerClient(address, timeout_s=60) as client:
        client.register_job("plan", _PLAN_MODEL, _PLAN_CLUSTER)
        _report_at_once(address, "plan", [counts_SLE])
        ids = [f"seq-{index}" for index in range(_NUM_PLANNED)]

        def until_planned(schedule: Schedule | None, level: Level) -> float:
            began_s = time.perf_counter()
            client.submit_schedule("plan", 1, ids, schedule)
            while client.fetch_plan("plan", 1, _PLAN_MODEL, wait_s=60).level is not level:
                pass
            return time.perf_counter() - began_s

        return until_planned(None, Level.STEP), until_planned(schedule, Level.MICRO_BATCHES)


def _pack(address: str) -> float:
    """Return the seconds from asking for the first packing of a job to having it."""
    trace = read_trace(results.TRACES / "gpt-oss-20b_mmlu.npz")
    cluster = Cluster(num_nodes=4, gpus_per_node=8, redundant_slots=2)
    params = PlanParams(cost=CostModel.of_expert(_PACKED_EXPERT_SIZE_BYTES, _PACKED_TOKEN_SIZE_BYTES))
    counts_SLE = count_sequences(trace)
    with PlannerClient(address, timeout_s=60) as client:
        client.register_job("pack", model_of(trace), cluster, params)
        queue: Any = SimpleQueue()
        _report(address, "pack", counts_SLE, 0, queue, trace.top_k)
        ids = [f"seq-{index}" for index in range(len(counts_SLE))]
        start = Schedule.round_robin(len(ids), 16, cluster)
        began_s = time.perf_counter()
        client.pack("pack", 1, ids, counts_SLE[:, 0].sum(axis=-1) // trace.top_k, start)
        return time.perf_counter() - began_s


async def _fetch(address: str) -> tuple[list[float], list[bytes]]:
    """Let all agents fetch at once, in many rounds; return the seconds of every fetch, and the last answers."""
    num_agents = _PLAN_CLUSTER.num_ranks
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(num_agents)]
    with PlannerClient(address) as client:
        epoch = client.join_attempt("plan")
    encode = plan_pb2.FetchPlanRequest.SerializeToString
    calls = [each.unary_unary("/relibra.v1.PlanService/FetchPlan", request_serializer=encode) for each in channels]

    async def fetch(rank: int) -> tuple[float, bytes]:
        began_s = time.perf_counter()
        request = plan_pb2.FetchPlanRequest(job_id="plan", step=1, epoch=epoch)
        answer = await calls[rank](request, timeout=30)
        return time.perf_counter() - began_s, answer

    gc.freeze()  # one process plays all agents, and a garbage collection would stop them all at once
    rounds = [await asyncio.gather(*map(fetch, range(num_agents))) for _ in range(_NUM_ROUNDS + 2)]
    for channel in channels:
        await channel.close()
    return [seconds for answers in rounds[2:] for seconds, _ in answers], [answer for _, answer in rounds[-1]]


def _rows(address: str) -> Iterator[dict[str, object]]:
    for num_processes in (1, 2):
        rate = _ingest(address, num_processes)
        yield {
            "what": f"ingest, {num_processes} reporter process(es), sequences/s",
            "figure": rate,
            "target": ">= 2000",
        }
    of_sequences_s, of_schedule_s = _plan(address)
    yield {"what": "sequences submitted to plan of level step in hand, s", "figure": of_sequences_s}
    yield {"what": "schedule submitted to plan in hand, s", "figure": of_schedule_s}
    yield {"what": "first packing of gpt-oss-20b on 4 x 8 ranks, s", "figure": _pack(address), "target": "<= 1"}
    times_s, answers = asyncio.run(_fetch(address))
    for percentile, target in ((50, ""), (99, "<= 50")):
        figure = float(np.percentile(times_s, percentile)) * 1e3
        yield {"what": f"fetch, 64 agents at once: p{percentile}, ms", "figure": figure, "target": target}
    yield {"what": "size of a fetch, KiB", "figure": sum(map(len, answers)) / len(answers) / 1024}
    began_s = time.perf_counter()
    for answer in answers:
        decode_step_plan(plan_pb2.FetchPlanResponse.FromString(answer).plan, _PLAN_MODEL)
    yield {"what": "decoding, at the agent, ms", "figure": (time.perf_counter() - began_s) / len(answers) * 1e3}


def main() -> None:
    """Measure, print the table and write the results."""
    os.environ |= {ATTEMPT_VARIABLE: "benchmark", "RELIBRA_MAX_INGEST_BYTES_PER_S": str(1 << 40)}
    with tempfile.TemporaryDirectory() as folder, OwnServices(Path(folder)) as services:
        rows = list(_rows(services.planner_address))
    results.show(f"one planner on {os.cpu_count()} cores, clients included", rows)
    results.write("service", rows, load_average=[round(each, 1) for each in os.getloadavg()])


if __name__ == "__main__":
    main()
