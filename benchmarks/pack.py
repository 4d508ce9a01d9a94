"""The gain of packing: one step under round-robin, length-balanced and packed schedules, with equal slots.

    python -m benchmarks.pack

Every seed shuffles the sequences of a trace, which changes what round-robin deals. The token budget is the one that
round-robin needs. *Removed* is the part of the imbalance above 1 that packing removes, compared with the better of the
two other schedules. *Floor* is a bound for every placement under the packed schedule; with few tokens it is above 1,
because tokens are whole.

The last row is a synthetic step: 1024 sequences of 48 layers x 128 experts. Its time is that of a second call. Writes
`results/pack.json`.
"""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.evaluation import ScheduleScore, comparison_schedules, model_of, score_schedule
from relibra.evaluation.schedules import largest_tokens
from relibra.planning import Cluster, Model, Plan, Schedule, StepLoad, check_plan
from relibra.planning.packing.pack import pack
from relibra.planning.schedule import Packing
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_CLUSTER = Cluster(num_nodes=4, gpus_per_node=8, redundant_slots=2)
_SEEDS = range(3)
_MICRO_BATCHES = (8, 16, 32)


def _rows(
    name: str, counts_SLE: NDArray[np.integer], length_S: NDArray[np.int64], model: Model, num_micro_batches: int
) -> list[dict[str, Any]]:
    rows = []
    for seed in _SEEDS:
        order_S = np.random.default_rng(seed).permutation(len(length_S))
        rows.append(_row(name, counts_SLE[order_S], length_S[order_S], model, num_micro_batches, seed))
    return rows


def _row(
    name: str,
    counts_SLE: NDArray[np.integer],
    length_S: NDArray[np.int64],
    model: Model,
    num_micro_batches: int,
    seed: int,
) -> dict[str, Any]:
    start = Schedule.round_robin(len(length_S), num_micro_batches, _CLUSTER)
    budget = largest_tokens(start, length_S, _CLUSTER)

    def plan_of(schedule: Schedule, packing: Packing | None = None) -> tuple[Plan, ScheduleScore]:
        load = StepLoad.of(counts_SLE, schedule, _CLUSTER)
        plan = solve(load, schedule, model, _CLUSTER, packing=packing)
        check_plan(plan, load.load_MLE)
        return plan, score_schedule(plan, counts_SLE, length_S)

    others = comparison_schedules(length_S, num_micro_batches, _CLUSTER, budget)
    scores = [plan_of(schedule)[1] for schedule in others.values()]
    started = time.perf_counter()
    packing, _ = pack(counts_SLE, length_S, start, model, _CLUSTER, budget)
    pack_time_s = time.perf_counter() - started
    plan, packed = plan_of(packing.schedule, packing)
    better = min(score.imbalance for score in scores)
    names = (*others, "packed")
    return {
        "load": name,
        "num_micro_batches": num_micro_batches,
        "seed": seed,
        "removed": (better - packed.imbalance) / (better - 1),
        "floor": plan.prediction.imbalance_floor,
        "schedules": {name: asdict(score) for name, score in zip(names, (*scores, packed), strict=True)},
        "pack_time_s": pack_time_s,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    scores = row["schedules"].values()
    return [
        row["load"],
        str(row["num_micro_batches"]),
        str(row["seed"]),
        *(f"{score['imbalance']:.4f}" for score in scores),
        f"{row['removed']:.0%}",
        f"{row['floor']:.4f}",
        *(f"{score['cross_node_share']:.1%}" for score in scores),
        *(f"{score['largest_tokens']}" for score in scores),
        *(f"{score['attention_spread']:.2f}" for score in scores),
        f"{row['pack_time_s']:.2f}",
    ]


def _large_step() -> tuple[NDArray[np.uint32], NDArray[np.int64], Model]:
    """Draw 1024 sequences of log-normal lengths; each routes like one of 16 kinds, with a deviation of its own."""
    rng = np.random.default_rng(0)
    length_S = np.clip(rng.lognormal(6.5, 0.8, 1024), 16, 8192).astype(np.int64)
    kind_KLE = rng.normal(0, 0.8, (1, 48, 128)) + rng.normal(0, 0.5, (16, 48, 128))
    popularity_SLE = np.exp(kind_KLE[rng.integers(0, 16, 1024)] + rng.normal(0, 0.3, (1024, 48, 128)))
    popularity_SLE /= popularity_SLE.sum(axis=-1, keepdims=True)
    counts_SLE = rng.poisson(popularity_SLE * 8 * length_S[:, None, None]).astype(np.uint32)
    return counts_SLE, length_S, Model(num_layers=48, num_experts=128, top_k=8)


def main() -> None:
    """Measure, print the table and write the results; columns in threes are round-robin, length-balanced, packed."""
    table = Table(title="4 x 8 GPUs, 2 redundant slots: round-robin, length-balanced, packed")
    headings = ["load", "M", "seed", "imbalance", "", "", "removed", "floor"]
    headings += ["across nodes", "", "", "largest", "", "", "attention", "", "", "pack s"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "load" else "right", no_wrap=True)
    rows = []
    for path in sorted(results.TRACES.glob("*_*.npz")):
        if "counts" in path.name:
            continue
        trace = read_trace(path)
        model = model_of(trace)
        for num_micro_batches in _MICRO_BATCHES:
            rows += _rows(path.stem, count_sequences(trace), np.diff(trace.offsets), model, num_micro_batches)
    large = _large_step()
    _row("warm", *large, 16, 0)
    rows.append(_row("1024 x 48 x 128, synthetic", *large, 16, 0))
    for row in rows:
        table.add_row(*_cells(row))
    results.write("pack", rows, redundant_slots=2, num_nodes=4, gpus_per_node=8)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
