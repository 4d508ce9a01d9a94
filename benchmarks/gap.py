"""The gaps of the planner and of its lower bound to the exact optimum, on random small cells.

    python -m benchmarks.gap [CELLS] [SEED] [MIN_TOKENS]

Cells have 2 to 8 ranks, 2 to 16 experts and 0 to 3 slots, drawn with four skews. In half of them the heavy experts
share the same ranks, so that slots are short. The optimum is that of the mixed-integer program in
`relibra.planning.bounds.exact`. Needs scipy. Writes `results/gap-<SEED>-<MIN_TOKENS>.json`.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.planning import Cluster
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.bounds.exact import exact_limit
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.replicate import replicate_layer

_SKEWS = (0.3, 0.6, 1.2, 2.0)
_NUM_LISTED = 10


def random_cells(num_cells: int, seed: int) -> Iterator[tuple[NDArray[np.int64], int, int, float]]:
    """Draw (tokens of every expert, ranks, slots, skew); ranks own experts in order, an equal number each."""
    rng = np.random.default_rng(seed)
    for _ in range(num_cells):
        num_ranks = int(rng.integers(2, 9))
        num_experts = num_ranks * int(rng.integers(1, 16 // num_ranks + 1))
        skew, scale = float(rng.choice(_SKEWS)), rng.choice([20, 300, 4000])
        load_E = rng.poisson(rng.lognormal(0, skew, num_experts) * scale).astype(np.int64)
        if rng.integers(2):
            load_E.sort()
        yield load_E, num_ranks, int(rng.integers(0, 4)), skew


def main() -> None:
    """Measure; print the table and the cells furthest from their optimum; write the results."""
    given = [int(value) for value in sys.argv[1:]]
    num_cells, seed, min_tokens = [*given, *(500, 0, 1)[len(given) :]]
    rows, worst, milp_time_s = [], [], 0.0
    for load_E, num_ranks, slots, skew in random_cells(num_cells, seed):
        cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=slots)
        home_E = np.repeat(np.arange(num_ranks, dtype=np.int32), len(load_E) // num_ranks)
        found = replicate_layer(load_E[None], home_E, cluster, ReplicaPrice(least=min_tokens)).limit_M[0]
        bound = lower_bound_ML(load_E[None, None], home_E[None], cluster, min_tokens)[0, 0]
        started = time.perf_counter()
        best = exact_limit(load_E, home_E, num_ranks, slots, min_tokens)
        milp_time_s += time.perf_counter() - started
        if best.found:
            without = load_E.reshape(num_ranks, -1).sum(axis=1).max()
            numbers = np.array([without, found, best.found, bound]) / best.at_least - 1
            rows.append((skew, slots, best.is_proven, *numbers))
            worst.append((numbers[1], f"{num_ranks} ranks, {slots} slots, {best.found} tokens: {load_E.tolist()}"))
    table = Table(
        title=f"{len(rows)} random cells: slowest rank above the optimum, replicas of at least {min_tokens} tokens"
    )
    for heading in (
        "cells",
        "number",
        "without replicas",
        "planned, mean",
        "worst",
        "not optimal",
        "bound, mean",
        "worst",
    ):
        table.add_column(heading, justify="left" if heading == "cells" else "right")
    for name, chosen in (
        ("all", rows),
        *((f"skew {skew}", [row for row in rows if row[0] == skew]) for skew in _SKEWS),
        *((f"{slots} slots", [row for row in rows if row[1] == slots]) for slots in range(4)),
    ):
        if not chosen:
            continue
        value = np.array([row[3:] for row in chosen])
        table.add_row(
            name,
            str(len(chosen)),
            f"{value[:, 0].mean():.1%}",
            f"{value[:, 1].mean():.3%}",
            f"{value[:, 1].max():.2%}",
            str(int((value[:, 1] > 0).sum())),
            f"{value[:, 3].mean():.3%}",
            f"{value[:, 3].min():.2%}",
        )
    console = Console()
    console.print(table)
    value = np.array([row[3:] for row in rows])
    names = ("without_replicas", "planned", "optimum", "bound")
    gaps = [
        {"what": name, "mean": mean, "least": least, "most": most}
        for name, mean, least, most in zip(names, value.mean(0), value.min(0), value.max(0), strict=True)
    ]
    results.write(f"gap-{seed}-{min_tokens}", gaps, cells=len(rows), proven=sum(row[2] for row in rows))
    num_open = sum(not row[2] for row in rows)
    console.print(f"{num_open} optima not proven; {milp_time_s / len(rows) * 1e3:.0f} ms a MILP", highlight=False)
    for gap, name in sorted(worst, reverse=True)[:_NUM_LISTED]:
        if gap > 0:
            console.print(f"{gap:.2%} above: {name}", highlight=False)


if __name__ == "__main__":
    main()
