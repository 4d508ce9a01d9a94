"""How far the search for homes and its floor are from the best placement, which an exhaustive search proves.

    python -m benchmarks.placement_gap

On several nodes the split of experts over nodes decides, because replicas cannot leave a node: with a slot for every
expert the slowest rank of a cell has the mean of its heaviest node. So the best placement of a layer has the least sum,
over its micro-batches, of the heaviest node's load. Depth first search finds it: experts go to nodes one by one, and a
branch ends where it cannot be better than the best so far. Loads are log-normal, with one part that all micro-batches
share and one part per micro-batch, or recorded (gpt-oss-20b on 2 nodes; needs the traces). Writes
`results/placement_gap.json`.

M micro-batches, E experts, N nodes.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_tables
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.bounds.step import step_bound_L
from relibra.planning.jit import compile_once
from relibra.planning.solve import solve
from relibra.routing import count_sequences, read_trace

_SIZES = ((2, 8, 16), (2, 4, 24), (3, 2, 18), (4, 4, 16), (8, 2, 16))
"""Nodes, ranks of a node, experts."""
_SPREADS = ((0.5, 0.3), (0.8, 0.5))
"""The deviations of log-loads: of the part that micro-batches share, and of the part per micro-batch."""
_NUM_LAYERS = 10
_RECORDED_LAYERS = (0, 8, 16)
_MOST_BRANCHES = 400_000_000
PAGE = Path(__file__).parents[1] / "docs" / "optimality.md"


@compile_once
def best_sum(load_ME: NDArray[np.int64], num_nodes: int, at_most: int, most_branches: int) -> tuple[int, bool]:
    """Return the least sum of the heaviest node's load over rows, and whether that is proven.

    Args:
        load_ME: the tokens of every expert in every row, heaviest experts first.
        num_nodes: N, which divides E.
        at_most: a sum that some placement has.
        most_branches: the search gives up after this many branches.
    """
    num_rows, num_experts = load_ME.shape
    size = num_experts // num_nodes
    mean_M = load_ME.sum(axis=1) / num_nodes
    heaviest_EM = np.zeros((num_experts + 1, num_rows))
    heaviest_EM[0] = mean_M
    load_NM, held_N = np.zeros((num_nodes, num_rows), dtype=np.int64), np.zeros(num_nodes, dtype=np.int64)
    node_E = np.full(num_experts, -1, dtype=np.int64)
    best, expert, num_branches = at_most, 0, 0
    while expert >= 0:
        node = node_E[expert]
        if node >= 0:  # take it back, and try the next node
            load_NM[node] -= load_ME[:, expert]
            held_N[node] -= 1
        node += 1
        while node < num_nodes and held_N[node] == size:
            node += 1
        # Empty nodes are alike: only the first of them is tried.
        if node == num_nodes or (node > 0 and held_N[node] == 0 and held_N[node - 1] == 0):
            node_E[expert] = -1
            expert -= 1
            continue
        num_branches += 1
        if num_branches > most_branches:
            return best, False
        node_E[expert] = node
        load_NM[node] += load_ME[:, expert]
        held_N[node] += 1
        total = 0.0
        for row in range(num_rows):
            heaviest_EM[expert + 1, row] = max(heaviest_EM[expert, row], load_NM[node, row])
            total += np.ceil(heaviest_EM[expert + 1, row])
        if total < best:
            if expert == num_experts - 1:
                best = int(total)
            else:
                expert += 1
    return best, True


def _compare(load: StepLoad, cluster: Cluster, layers: tuple[int, ...]) -> Iterator[dict[str, float]]:
    """Yield, for some layers, how far the plan is above the best placement, and the floor below it."""
    num_rows, num_layers, num_experts = load.load_MLE.shape
    model = Model(num_layers=num_layers, num_experts=num_experts, top_k=1)
    schedule = Schedule.round_robin(len(load.counts_SLE), num_rows, cluster)
    plan = solve(load, schedule, model, cluster)
    node_LE = plan.home_rank_LE // cluster.gpus_per_node
    floor_L = step_bound_L(load.load_MLE.astype(np.int64), cluster)
    for layer in layers:
        load_ME = load.load_MLE[:, layer].astype(np.int64)
        order_E = np.argsort(-load_ME.sum(axis=0))
        by_node_MN = np.stack([load_ME[:, node_LE[layer] == node].sum(axis=1) for node in range(cluster.num_nodes)], 1)
        planned = int(by_node_MN.max(axis=1).sum())
        best, is_proven = best_sum(load_ME[:, order_E], cluster.num_nodes, planned, _MOST_BRANCHES)
        floor = int(floor_L[layer]) * cluster.gpus_per_node
        yield {"planned": planned / best - 1, "floor": 1 - floor / best, "is_proven": is_proven}


def _drawn(num_nodes: int, size: int, num_experts: int, num_rows: int, spread: tuple[float, float]) -> StepLoad:
    rng = np.random.default_rng([num_nodes, num_experts, num_rows])
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=size, redundant_slots=num_experts // num_nodes)
    shared_LE = rng.normal(0, spread[0], (_NUM_LAYERS, num_experts))
    own_MLE = rng.normal(0, spread[1], (num_rows, _NUM_LAYERS, num_experts))
    counts_MLE = np.rint(np.exp(shared_LE + own_MLE) * 3000).astype(np.int64)
    counts_SLE = np.zeros((num_rows * cluster.num_ranks, *counts_MLE.shape[1:]), dtype=np.int64)
    counts_SLE[:num_rows] = counts_MLE  # round-robin deals one sequence to every micro-batch first
    return StepLoad.of(counts_SLE, Schedule.round_robin(len(counts_SLE), num_rows, cluster), cluster)


def _rows() -> Iterator[dict[str, object]]:
    for num_nodes, size, num_experts in _SIZES:
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=size, redundant_slots=num_experts // num_nodes)
        for num_rows in (4, 16):
            for spread in _SPREADS:
                load = _drawn(num_nodes, size, num_experts, num_rows, spread)
                found = list(_compare(load, cluster, tuple(range(_NUM_LAYERS))))
                loads = f"{num_experts} experts, {num_nodes}x{size}, drawn {spread[0]}/{spread[1]}"
                yield _summary(loads, num_rows, found)
    trace = read_trace(results.TRACES / "gpt-oss-20b_mmlu.npz")
    cluster = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)
    counts_SLE = count_sequences(trace)
    for num_rows in (4, 16):
        schedule = Schedule.round_robin(len(counts_SLE), num_rows, cluster)
        found = list(_compare(StepLoad.of(counts_SLE, schedule, cluster), cluster, _RECORDED_LAYERS))
        yield _summary("gpt-oss-20b, 32 experts, 2x8, recorded", num_rows, found)


def _summary(loads: str, num_rows: int, found: list[dict[str, float]]) -> dict[str, object]:
    row: dict[str, object] = {"loads": loads, "micro_batches": num_rows, "layers": len(found)}
    row["proven"] = int(sum(each["is_proven"] for each in found))
    for key in ("planned", "floor"):
        row[key] = float(np.mean([each[key] for each in found]))
        row[f"{key}_worst"] = float(max(each[key] for each in found))
    return row


def placements() -> str:
    """Return the results on disk as a table."""
    keys = ("planned", "planned_worst", "floor", "floor_worst")
    lines = [
        (
            row["loads"],
            row["micro_batches"],
            f"{row['proven']} of {row['layers']}",
            *(f"{row[key]:.2%}" for key in keys),
        )
        for row in results.read("placement_gap")
    ]
    headings = ("loads", "micro-batches", "proven", "planned above the best", "worst", "floor below it", "worst")
    return markdown(headings, lines)


if __name__ == "__main__":
    results.write("placement_gap", list(_rows()), most_branches=_MOST_BRANCHES)
    write_tables(PAGE, {"placements": placements})
