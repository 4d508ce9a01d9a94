"""Balance against traffic between nodes: plans with and without a price for tokens that cross, and packing by both.

    python -m benchmarks.crossing

The routing is real. *Recorded* sequences are dealt round-robin, one to a rank where there are enough: nodes then have
unequal tokens. *Filled* ranks have 1024 tokens of one domain in each micro-batch, as in `relibra simulate`, and packing
may exchange them. The price of crossing follows from the sizes of a token and of an expert on H100-class nodes
(`CostModel.of_expert`). Time is that of experts and an all-to-all, by the simulator's own count, relative to that of
equally many tokens from every rank for every expert. Writes `results/crossing.json`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.evaluation import model_of, score_schedule
from relibra.evaluation.assignment import Assignment
from relibra.evaluation.constants import middles, ranges_of
from relibra.evaluation.dispatch_time import copies_of, dispatch_us_ML
from relibra.evaluation.dispatcher import DispatchDtype, Dispatcher
from relibra.evaluation.hardware import HARDWARE
from relibra.evaluation.workload import tiled
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.packing.pack import pack
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

SIZES = {"gpt-oss-20b_mmlu": (2880, 2880), "deepseek-v2-lite_esft": (2048, 1408)}
"""The hidden and intermediate size of an expert, by trace."""
MICRO_BATCHES = 8
FILLED_TOKENS = 1024
_DISPATCHES = 3
_LINKS = middles(ranges_of(HARDWARE["h100"], Dispatcher.ALLTOALL))


@dataclass(frozen=True, kw_only=True)
class _Step:
    counts_SLE: NDArray[np.integer]
    length_S: NDArray[np.int64]
    schedule: Schedule
    model: Model
    cluster: Cluster
    cost: CostModel

    def row(self, is_packed: bool, has_price: bool) -> dict[str, Any]:
        """Plan the step and return its figures."""
        cost = self.cost if has_price else replace(self.cost, token_size_bytes=0.0)
        params = PlanParams(cost=cost, min_tokens_per_replica=1)
        packing, schedule = None, self.schedule
        if is_packed:
            packing, _ = pack(self.counts_SLE, self.length_S, schedule, self.model, self.cluster, params=params)
            schedule = packing.schedule
        load = StepLoad.of(self.counts_SLE, schedule, self.cluster)
        plan = solve(load, schedule, self.model, self.cluster, params, packing=packing)
        check_plan(plan, load.load_MLE)
        score = score_schedule(plan, self.counts_SLE, self.length_S)
        assignment = Assignment.of_plan(plan)
        return {
            "crossing_tokens": cost.crossing_tokens,
            "is_packed": is_packed,
            "imbalance": score.imbalance,
            "cross_node_share": score.cross_node_share,
            "time": self._time_us(assignment, load) / self._even_us(load),
        }

    def _time_us(self, assignment: Assignment, load: StepLoad) -> float:
        links = replace(
            _LINKS,
            dispatch_inside_bytes_per_us=1e30,
            dispatch_across_bytes_per_us=self.cost.inter_node_bytes_per_us,
        )
        copies_MLNR = copies_of(assignment, load, self.cluster)
        dispatch_ML = dispatch_us_ML(copies_MLNR, self.cost.token_size_bytes, links, self.cluster, None)
        slowest = int(assignment.rank_loads_MLR(self.cluster).max(axis=-1).sum())
        return self.cost.saved_us(slowest) + _DISPATCHES * float(dispatch_ML.sum())

    def _even_us(self, load: StepLoad) -> float:
        """Return the time with as many tokens from every rank for every expert."""
        copies = int(load.load_MLE.sum()) / self.cluster.num_ranks
        crossing = 1 - 1 / self.cluster.num_nodes
        return self.cost.saved_us(copies * (1 + self.cost.crossing_tokens * crossing))


def _steps() -> Iterator[tuple[dict[str, Any], _Step]]:
    for (name, (hidden, intermediate)), num_nodes in product(SIZES.items(), (2, 4)):
        trace = read_trace(results.TRACES / f"{name}.npz")
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        token_size_bytes = DispatchDtype.BF16.token_size_bytes(hidden)
        recorded = _Step(
            counts_SLE=count_sequences(trace),
            length_S=np.diff(trace.offsets),
            schedule=Schedule.round_robin(trace.num_sequences, MICRO_BATCHES, cluster),
            model=model_of(trace),
            cluster=cluster,
            cost=CostModel.of_expert(6 * hidden * intermediate, token_size_bytes),
        )
        yield {"trace": name, "num_nodes": num_nodes, "sequences": "recorded"}, recorded
        step = tiled(trace, cluster, MICRO_BATCHES, FILLED_TOKENS, seed=0)
        filled = replace(recorded, counts_SLE=step.counts_SLE, length_S=step.length_S, schedule=step.schedule)
        yield {"trace": name, "num_nodes": num_nodes, "sequences": "filled"}, filled


def main() -> None:
    """Measure, print the table and write the results."""
    table = Table(title=f"{MICRO_BATCHES} micro-batches, 2 redundant slots")
    for heading in ("trace", "nodes", "sequences", "a crossing", "packed", "imbalance", "across nodes", "time"):
        table.add_column(heading, justify="left" if heading in ("trace", "sequences") else "right")
    rows = []
    for where, step in _steps():
        for is_packed, has_price in product((False, True), (False, True)):
            row = where | step.row(is_packed, has_price)
            rows.append(row)
            table.add_row(
                row["trace"],
                f"{row['num_nodes']}x8",
                row["sequences"],
                f"{row['crossing_tokens']:.1f}",
                "yes" if is_packed else "",
                f"{row['imbalance']:.4f}",
                f"{row['cross_node_share']:.1%}",
                f"{row['time']:.3f}",
            )
    Console(width=140).print(table)
    results.write("crossing", rows, redundant_slots=2, num_micro_batches=MICRO_BATCHES, filled_tokens=FILLED_TOKENS)


if __name__ == "__main__":
    main()
