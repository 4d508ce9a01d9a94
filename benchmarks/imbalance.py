"""The imbalance of plans on real routing, for several seeds and sizes of micro-batches.

    python -m benchmarks.imbalance

Every seed shuffles the sequences of a trace, and round-robin deals them. Writes `results/imbalance.json`.
"""

from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.evaluation import eplb_imbalance, model_of
from relibra.planning import Cluster, Schedule, StepLoad, check_plan
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_TRACES = ("gpt-oss-20b_mmlu", "deepseek-v2-lite_esft")
_TARGETS = {("gpt-oss-20b_mmlu", 1, 8): 1.0001, ("gpt-oss-20b_mmlu", 2, 8): 1.003, ("gpt-oss-20b_mmlu", 4, 8): 1.016}
"""By trace, nodes and micro-batches: what no change of planning may get above where dispatch is free. They are what
planning reached before dispatch had a price, and leave room for another shuffle of the sequences."""
_MICRO_BATCHES = (4, 8, 16, 32)
_SEEDS = range(3)


def _measure(name: str) -> list[dict[str, object]]:
    trace = read_trace(results.TRACES / f"{name}.npz")
    counts_SLE, model = count_sequences(trace), model_of(trace)
    rows: list[dict[str, object]] = []
    for num_nodes, num_micro_batches, seed in product((1, 2, 4), _MICRO_BATCHES, _SEEDS):
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        order_S = np.random.default_rng(seed).permutation(trace.num_sequences)
        schedule = Schedule.round_robin(trace.num_sequences, num_micro_batches, cluster)
        load = StepLoad.of(counts_SLE[order_S], schedule, cluster)
        plan = solve(load, schedule, model, cluster)
        check_plan(plan, load.load_MLE)
        rows.append(
            {
                "trace": name,
                "num_nodes": num_nodes,
                "num_micro_batches": num_micro_batches,
                "seed": seed,
                "mean_tokens_of_a_rank": float(load.load_MLE.sum()) / plan.lower_bound_ML.size / cluster.num_ranks,
                "identity": plan.prediction.imbalance_before,
                "eplb_oracle": eplb_imbalance(load.load_MLE, plan),
                "planned": plan.prediction.imbalance_after,
                "bound": plan.prediction.imbalance_bound,
                "floor": plan.prediction.imbalance_floor,
            }
        )
    return rows


def main() -> None:
    """Measure; print means over seeds and the worst seed beside the target; write the results."""
    rows = [row for name in _TRACES for row in _measure(name)]
    table = Table(title="imbalance with 2 redundant slots, means of 3 seeds")
    for heading in (
        "trace",
        "nodes",
        "micro-batches",
        "tokens/rank",
        "identity",
        "EPLB oracle",
        "planned",
        "worst",
        "target",
        "bound",
        "any placement",
    ):
        table.add_column(heading, justify="left" if heading == "trace" else "right")
    for name, num_nodes, num_micro_batches in product(_TRACES, (1, 2, 4), _MICRO_BATCHES):
        wanted = {"trace": name, "num_nodes": num_nodes, "num_micro_batches": num_micro_batches}
        of_case = [row for row in rows if wanted.items() <= row.items()]
        mean = {key: np.mean([row[key] for row in of_case]) for key in of_case[0] if key != "trace"}  # type: ignore[arg-type]
        table.add_row(
            name,
            f"{num_nodes}x8",
            str(num_micro_batches),
            f"{mean['mean_tokens_of_a_rank']:.0f}",
            *(f"{mean[key]:.4f}" for key in ("identity", "eplb_oracle", "planned")),
            f"{max(row['planned'] for row in of_case):.4f}",  # type: ignore[type-var]
            str(_TARGETS.get((name, num_nodes, num_micro_batches), "")),
            f"{mean['bound']:.4f}",
            f"{mean['floor']:.4f}",
        )
    Console(width=140).print(table)
    results.write("imbalance", rows, redundant_slots=2)


if __name__ == "__main__":
    main()
