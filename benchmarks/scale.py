"""The plan time and memory of large steps: their growth, and EPLB run once per cell for comparison.

    taskset -c 0 python -m benchmarks.scale [--threads 1] [--quick] [--case NAME]

Loads are mixtures of the workloads in `deepseek-v3_counts_dev.npz` (see `workload_mix`). Every case runs in its own
process with compiled code already loaded; times are the least of several calls. `input MiB` is the memory of that
process before it plans, with the counts; `peak MiB` is its largest memory. The first case also runs EPLB as published
(see `eplb_torch`) on the loads of some of its micro-batches. A run of all cases writes `results/scale.json`.
"""

import argparse
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.workload_mix import mix_workloads
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.replicas.replicate import replicate
from relibra.planning.solve import solve

_TOP_K = 8
_EPLB_CALLS = 3
_EXPERT_SIZE_BYTES = 88_080_384
"""The weights of an expert of DeepSeek-V3, for the price of dispatch."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A step to plan."""

    group: str
    num_nodes: int = 8
    gpus_per_node: int = 8
    num_ep_groups: int = 1
    num_micro_batches: int = 32
    num_layers: int = 58
    num_experts: int = 256
    token_size_bytes: int = 0
    """The bytes that dispatch and combine of a token copy move, in an all-to-all; 0 makes dispatch free."""
    num_calls: int = 5


_CASES = [
    Case(group="target"),
    Case(group="all-to-all", token_size_bytes=28_672),
    *(Case(group="layers", num_layers=number) for number in (15, 29, 116)),
    *(Case(group="micro-batches", num_micro_batches=number) for number in (8, 16, 64, 128)),
    *(Case(group="experts", num_experts=number) for number in (64, 128, 512)),
    *(Case(group="nodes", num_nodes=number) for number in (1, 2, 4, 16, 32)),
    Case(group="512 ranks", num_nodes=64, num_micro_batches=128, num_experts=512, num_calls=2),
    Case(group="8 EP groups", num_ep_groups=8, num_micro_batches=128, num_calls=2),
]


def _least(call: Callable[[], object], num_calls: int) -> float:
    times = []
    for _ in range(num_calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _eplb_us_per_cell(load_MLE: NDArray[np.int64], cluster: Cluster) -> float:
    """Return the time of EPLB on one micro-batch, all layers in one call, which is how EPLB is used."""
    import torch  # imported here, so that the memory measured before does not include it

    from benchmarks.eplb_torch import rebalance_experts

    torch.set_num_threads(1)
    _, num_layers, num_experts = load_MLE.shape
    num_physical = num_experts + cluster.num_ranks * cluster.redundant_slots
    loads = iter(load_MLE)

    def call() -> None:
        weight_LE = torch.from_numpy(next(loads))
        rebalance_experts(weight_LE, num_physical, num_experts, cluster.num_nodes, cluster.num_ranks)

    return _least(call, _EPLB_CALLS) / num_layers * 1e6


def _run(case: Case, num_threads: int) -> dict[str, Any]:
    cluster = Cluster(
        num_nodes=case.num_nodes,
        gpus_per_node=case.gpus_per_node,
        redundant_slots=2,
        num_ep_groups=case.num_ep_groups,
    )
    model = Model(num_layers=case.num_layers, num_experts=case.num_experts, top_k=_TOP_K)
    num_rows = case.num_ep_groups * case.num_micro_batches
    num_sequences = num_rows * (64 if num_rows <= 32 else 16)
    with np.load(results.TRACES / "deepseek-v3_counts_dev.npz") as file:
        expert_counts_WLE = file["expert_counts"]
    counts_SLE = mix_workloads(
        expert_counts_WLE,
        num_sequences=num_sequences,
        tokens_per_sequence=8192 * cluster.num_ranks * num_rows // num_sequences,
        top_k=_TOP_K,
        seed=0,
        num_experts=case.num_experts,
        num_layers=case.num_layers,
    )
    index_S = np.arange(num_sequences, dtype=np.int32)
    turn_S = index_S // np.int32(num_rows)
    schedule = Schedule(
        micro_batch_S=index_S % np.int32(case.num_micro_batches),
        source_rank_S=turn_S % np.int32(cluster.num_ranks),
        ep_group_S=index_S // np.int32(case.num_micro_batches) % np.int32(case.num_ep_groups),
    )
    load = StepLoad.of(counts_SLE, schedule, cluster)
    load_MLE = load.load_MLE
    small = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    two = Schedule.round_robin(2, 1, small)
    tiny = StepLoad.of(np.arange(16, dtype=np.uint32).reshape(2, 1, 8), two, small)
    solve(tiny, two, Model(num_layers=1, num_experts=8, top_k=1), small)
    params = PlanParams()
    if case.token_size_bytes:
        params = PlanParams(cost=CostModel.of_expert(_EXPERT_SIZE_BYTES, case.token_size_bytes))
    input_mib = _resident_mib()
    plan = solve(load, schedule, model, cluster, params, num_threads=num_threads)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    plan_time_s = _least(lambda: solve(load, schedule, model, cluster, params, num_threads=num_threads), case.num_calls)
    home_LE = plan.home_rank_LE
    replicate_time_s = _least(lambda: replicate(load_MLE, home_LE, cluster), case.num_calls)
    check_plan(plan, load_MLE)
    num_cells = plan.lower_bound_ML.size
    return {
        "case": case.group,
        **{key: value for key, value in asdict(case).items() if key not in ("group", "num_calls")},
        "num_cells": num_cells,
        "identity": plan.prediction.imbalance_before,
        "planned": plan.prediction.imbalance_after,
        "bound": plan.prediction.imbalance_bound,
        "replicas_per_rank": plan.prediction.num_replicas / num_cells / cluster.num_ranks,
        "plan_time_s": plan_time_s,
        "plan_us_per_cell": plan_time_s / num_cells * 1e6,
        "replicate_us_per_cell": replicate_time_s / num_cells * 1e6,
        "eplb_us_per_cell": _eplb_us_per_cell(load_MLE, cluster) if case.group == "target" else None,
        "input_mib": input_mib,
        "peak_mib": peak_mib,
    }


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads that planning uses")
    parser.add_argument("--quick", action="store_true", help="only the target case")
    parser.add_argument("--case", help="only cases of this name")
    arguments = parser.parse_args()
    console, rows = Console(width=160), []
    for case in _CASES[:1] if arguments.quick else _CASES:
        if arguments.case in (None, case.group):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                rows.append(pool.apply(_run, (case, arguments.threads)))
            console.print(*_cells(rows[-1]), highlight=False)
    table = Table(title=f"planning large steps with 2 redundant slots on {arguments.threads} thread(s)")
    for heading in (
        "case",
        "L x E",
        "nodes",
        "rows",
        "cells",
        "identity",
        "planned",
        "bound",
        "replicas/rank",
        "plan s",
        "us/cell",
        "replicate us/cell",
        "input MiB",
        "peak MiB",
    ):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in rows:
        if row["eplb_us_per_cell"]:
            replicate, plan = (row["eplb_us_per_cell"] / row[f"{key}_us_per_cell"] for key in ("replicate", "plan"))
            console.print(
                f"EPLB takes {row['eplb_us_per_cell']:.0f} us a cell: replication {replicate:.0f}, the whole step "
                f"{plan:.0f} times as fast",
                highlight=False,
            )
    if not arguments.quick and not arguments.case:
        results.write("scale", rows, threads=arguments.threads, redundant_slots=2)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["case"],
        f"{row['num_layers']} x {row['num_experts']}",
        f"{row['num_nodes']}x{row['gpus_per_node']}",
        str(row["num_ep_groups"] * row["num_micro_batches"]),
        str(row["num_cells"]),
        f"{row['identity']:.3f}",
        f"{row['planned']:.4f}",
        f"{row['bound']:.4f}",
        f"{row['replicas_per_rank']:.2f}",
        f"{row['plan_time_s']:.3f}",
        f"{row['plan_us_per_cell']:.0f}",
        f"{row['replicate_us_per_cell']:.1f}",
        f"{row['input_mib']:.0f}",
        f"{row['peak_mib']:.0f}",
    ]


if __name__ == "__main__":
    main()
