"""The gaps of the planner and of its lower bound to the exact optimum, on random small cells.

    PYTHONPATH=tests python -m benchmarks.gap [CELLS]

Cells have 2 to 8 ranks, 2 to 16 experts and 0 to 3 slots, drawn with four skews. In half of them the heavy experts
share the same ranks, so that slots are short. The optimum is that of the mixed-integer program in
`tests/harness/exact.py`. Needs scipy. A gap is the slowest rank relative to that of the optimum, minus 1; the
gaps of `bound` are negative. Writes `results/gap.json`.
"""

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from harness.exact import exact_limit
from relibra.planning import Cluster
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.replicate import replicate_layer

_SKEWS = (0.3, 0.6, 1.2, 2.0)
_CASES = ((0, 1), (1, 1), (2, 1), (0, 32))
"""The seed, and the least tokens of a replica."""


def random_cells(num_cells: int, seed: int) -> Iterator[tuple[NDArray[np.int64], int, int]]:
    """Draw (tokens of every expert, ranks, slots); ranks own experts in order, an equal number each."""
    rng = np.random.default_rng(seed)
    for _ in range(num_cells):
        num_ranks = int(rng.integers(2, 9))
        num_experts = num_ranks * int(rng.integers(1, 16 // num_ranks + 1))
        skew, scale = float(rng.choice(_SKEWS)), rng.choice([20, 300, 4000])
        load_E = rng.poisson(rng.lognormal(0, skew, num_experts) * scale).astype(np.int64)
        if rng.integers(2):
            load_E.sort()
        yield load_E, num_ranks, int(rng.integers(0, 4))


def _measure(num_cells: int, seed: int, min_tokens: int) -> dict[str, object]:
    gaps, num_proven = list[list[float]](), 0
    for load_E, num_ranks, slots in random_cells(num_cells, seed):
        cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=slots)
        home_E = np.repeat(np.arange(num_ranks, dtype=np.int32), len(load_E) // num_ranks)
        planned = replicate_layer(load_E[None], home_E, cluster, ReplicaPrice(least=min_tokens)).limit_M[0]
        bound = lower_bound_ML(load_E[None, None], home_E[None], cluster, min_tokens)[0, 0]
        best = exact_limit(load_E, home_E, num_ranks, slots, min_tokens)
        if best.at_most:
            without = load_E.reshape(num_ranks, -1).sum(axis=1).max()
            gaps.append([tokens / best.at_least - 1 for tokens in (without, planned, bound)])
            num_proven += best.is_proven
    without_G, planned_G, bound_G = np.array(gaps).T
    return {
        "seed": seed,
        "min_tokens": min_tokens,
        "cells": len(gaps),
        "proven": num_proven,
        "without_replicas": float(without_G.mean()),
        "planned": float(planned_G.mean()),
        "planned_worst": float(planned_G.max()),
        "bound": float(bound_G.mean()),
        "bound_worst": float(bound_G.min()),
    }


def main() -> None:
    """Measure, print the table and write the results."""
    num_cells = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    rows = [_measure(num_cells, seed, min_tokens) for seed, min_tokens in _CASES]
    results.show("gaps to the optimum", rows)
    results.write("gap", rows)


if __name__ == "__main__":
    main()
