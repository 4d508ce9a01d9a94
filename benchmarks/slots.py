"""How much redundant slots gain, by their number: with known routing, and with the loads of four steps before.

    python -m benchmarks.slots

The steps are those of `benchmarks.imbalance`, with one seed and 4 micro-batches. Writes `results/slots.json` and the
table of docs/optimality.md. Needs the traces.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_tables
from benchmarks.imbalance import steps_of
from relibra.evaluation import model_of
from relibra.planning import Cluster, Schedule, StepLoad, imbalance
from relibra.planning.expected.loads import seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Level, Plan
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_CASES = (("gpt-oss-20b_mmlu", "alike"), ("deepseek-v2-lite_esft", "alike"), ("deepseek-v2-lite_esft", "other domains"))
_SLOTS = (0, 1, 2, 4)
_NUM_MICRO_BATCHES = 4
PAGE = Path(__file__).parents[1] / "docs" / "optimality.md"


def _most_in_a_node(plan: Plan) -> int:
    """Return the most replicas that a node has in a cell."""
    if not len(plan.replica_index_Y4):
        return 0
    place_Y3 = plan.replica_index_Y4[:, [0, 1, 3]] // [1, 1, plan.cluster.gpus_per_node]
    return int(np.unique(place_Y3, axis=0, return_counts=True)[1].max())


def _rows() -> Iterator[dict[str, object]]:
    for (name, steps), num_nodes, slots in product(_CASES, (1, 2, 4), _SLOTS):
        trace = read_trace(results.TRACES / f"{name}.npz")
        model, counts_SLE = model_of(trace), count_sequences(trace)
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=slots)
        of_steps = steps_of(trace, counts_SLE, steps, np.random.default_rng(0))
        schedule = Schedule.round_robin(len(of_steps[0]), _NUM_MICRO_BATCHES, cluster)
        *past, load = (StepLoad.of(each, schedule, cluster) for each in of_steps)
        seen = seen_load(np.concatenate([each.load_MLE for each in past]), cluster)
        known = solve(load, schedule, model, cluster)
        foreseen = solve(load, schedule, model, cluster, level=Level.HISTORY, seen=seen)
        yield {
            "trace": name,
            "steps": steps,
            "num_nodes": num_nodes,
            "slots": slots,
            "replay": imbalance(realised_loads(known, load)),
            "history": imbalance(realised_loads(foreseen, load)),
            "most_replicas": _most_in_a_node(known),
        }


def slots() -> str:
    """Return the results on disk as a table."""
    by_case: dict[tuple[str, str, int], dict[int, dict[str, float]]] = {}
    for row in results.read("slots"):
        by_case.setdefault((row["trace"], row["steps"], row["num_nodes"]), {})[row["slots"]] = row
    lines = []
    for (trace, steps, num_nodes), of in by_case.items():
        figures = [f"{of[number][level]:.3f}" for level in ("replay", "history") for number in _SLOTS]
        where = f"{trace.partition('_')[0]}, {steps}, {num_nodes}x8"
        lines.append((where, *figures, max(int(row["most_replicas"]) for row in of.values())))
    headings = (f"{level}, {number}" for level in ("replay", "history") for number in _SLOTS)
    return markdown(("steps", *headings, "most copies of a node and cell, replay"), lines)


if __name__ == "__main__":
    results.write("slots", list(_rows()), micro_batches=_NUM_MICRO_BATCHES)
    write_tables(PAGE, {"slots": slots})
