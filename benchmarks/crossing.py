"""Balance against traffic between nodes: plans with and without a price for tokens that cross.

    python -m benchmarks.crossing

The schedules are round-robin, the routing is real. The price of crossing follows from the sizes of a token and of an
expert on H100-class nodes (`CostModel.of_expert`). Writes `results/crossing.json`.
"""

from itertools import product

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.evaluation import model_of, score_schedule
from relibra.planning import Cluster, CostModel, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_SIZES = {"gpt-oss-20b_mmlu": (2880, 2880), "deepseek-v2-lite_esft": (2048, 1408)}
"""The hidden and intermediate size of an expert, by trace."""
_MICRO_BATCHES = 8


def main() -> None:
    """Measure, print the table and write the results."""
    table = Table(title=f"{_MICRO_BATCHES} micro-batches, 2 redundant slots")
    for heading in ("trace", "nodes", "a crossing, in tokens", "imbalance", "token copies across nodes"):
        table.add_column(heading, justify="left" if heading == "trace" else "right")
    rows = []
    for (name, (hidden, intermediate)), num_nodes in product(_SIZES.items(), (2, 4)):
        trace = read_trace(results.TRACES / f"{name}.npz")
        counts_SLE = count_sequences(trace)
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        schedule = Schedule.round_robin(trace.num_sequences, _MICRO_BATCHES, cluster)
        load = StepLoad.of(counts_SLE, schedule, cluster)
        for token_size_bytes in (0, 4 * hidden):  # bf16, out and back
            cost = CostModel.of_expert(6 * hidden * intermediate, token_size_bytes)
            params = PlanParams(cost=cost, min_tokens_per_replica=1)
            plan = solve(load, schedule, model_of(trace), cluster, params)
            check_plan(plan, load.load_MLE)
            score = score_schedule(plan, counts_SLE, np.diff(trace.offsets))
            row = {
                "trace": name,
                "num_nodes": num_nodes,
                "crossing_tokens": cost.crossing_tokens,
                "imbalance": score.imbalance,
                "cross_node_share": score.cross_node_share,
            }
            rows.append(row)
            table.add_row(
                name,
                f"{num_nodes}x8",
                f"{cost.crossing_tokens:.1f}",
                f"{score.imbalance:.4f}",
                f"{score.cross_node_share:.1%}",
            )
    Console().print(table)
    results.write("crossing", rows, redundant_slots=2, num_micro_batches=_MICRO_BATCHES)


if __name__ == "__main__":
    main()
