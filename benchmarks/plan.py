"""Imbalance and time of plans: real routing traces, then the largest step the design names.

    python benchmarks/plan.py [FOLDER OF TRACES]

The folder defaults to RELIBRA_TRACES, else `../shared/traces` beside the repository. Times are of a second call, so
that compiling is left out, next to one EPLB call on the same loads.
"""

import os
import resource
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from relibra.evaluation import compare, eplb, load_of, schedule_of
from relibra.planning import Cluster, Model, Plan, Schedule, StepLoad, check_plan
from relibra.planning.solve import solve
from relibra.routing import read_trace

_BESIDE = Path(__file__).parents[2] / "shared" / "traces"


def _row(name: str, load: StepLoad, schedule: Schedule, model: Model, cluster: Cluster) -> list[str]:
    solve(load, schedule, model, cluster)
    started = time.perf_counter()
    plan: Plan = solve(load, schedule, model, cluster)
    plan_time_s = time.perf_counter() - started
    load_MLE = load.load_MLE
    started = time.perf_counter()
    eplb(load_MLE, model, cluster)
    eplb_time_s = time.perf_counter() - started
    check_plan(plan, load_MLE)
    scores = compare(load_MLE, plan)
    imbalances = (scores.identity, scores.eplb_oracle, scores.planned, scores.bound)
    return [
        name,
        f"{cluster.num_nodes}x{cluster.gpus_per_node}",
        *(f"{value:.4f}" for value in imbalances),
        f"{plan.forecast.num_replicas / plan.lower_bound_ML.size:.1f}",
        f"{plan_time_s:.3f}",
        f"{eplb_time_s:.3f}",
    ]


def _large_step() -> tuple[StepLoad, Schedule, Model, Cluster]:
    """58 layers, 256 experts, 8 nodes of 8 GPUs, 32 micro-batches: log-normal popularity with jitter."""
    cluster = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
    model = Model(num_layers=58, num_experts=256, top_k=8)
    rng = np.random.default_rng(0)
    popularity_MLE = np.exp(rng.normal(0, 0.8, (1, 58, 256)) + rng.normal(0, 0.2, (32, 58, 256)))
    popularity_MLE /= popularity_MLE.sum(axis=-1, keepdims=True)
    source_load = rng.poisson(popularity_MLE[:, :, None] * 8192 * 8, (32, 58, 64, 256)).astype(np.int32)
    return StepLoad.of_sources(source_load), Schedule.round_robin(2048, 32, cluster), model, cluster


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RELIBRA_TRACES", _BESIDE))
    table = Table(title="planning with 2 redundant slots: imbalance, replicas a cell, seconds")
    for heading in ("load", "nodes", "identity", "EPLB oracle", "planned", "bound", "replicas", "plan s", "EPLB s"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for path in sorted(folder.glob("*_*.npz")):
        if "counts" in path.name:
            continue
        trace = read_trace(path)
        model = Model(num_layers=trace.num_layers, num_experts=trace.num_experts, top_k=trace.top_k)
        for num_nodes in (1, 2, 4):
            cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
            schedule = schedule_of(trace, cluster)
            table.add_row(*_row(path.stem, load_of(trace, schedule, cluster), schedule, model, cluster))
    table.add_row(*_row("58 x 256, synthetic", *_large_step()))
    console = Console()
    console.print(table)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"peak memory {peak_mib:.0f} MiB, loads included", highlight=False)


if __name__ == "__main__":
    main()
