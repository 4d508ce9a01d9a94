"""What long sequences do to balance, beside the same text cut into short ones.

    python -m benchmarks.long_sequences.measure

The routing is that of `record`: held-out sequences of 32,768 tokens of a small model that was trained for minutes. A
rank's micro-batch has equally many tokens in all rows of a case: one sequence, or sequences cut from the same texts and
shuffled. So only which tokens meet in a micro-batch differs. Figures are means over seeds:

- `variance`: the variance of sequences, as `RoutingStatistics` fits it;
- `plain`: the imbalance of plain expert parallelism;
- `history`, `step`, `replay`: that of relibra's plans, as in `benchmarks.imbalance`, but with one step before;
- `copies`: the copies of experts in a cell, with replay;
- `crossing`, `packed_crossing`: the share of token copies that leaves its node if sequences are dealt, or packed.

Writes `results/long_sequences.json` and the table of docs/simulation.md.

S sequences, P pieces, L layers, E experts.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_tables
from benchmarks.long_sequences.record import COUNTS, NUM_EXPERTS, NUM_LAYERS, PIECE_LENGTH, TOP_K
from relibra.evaluation import cross_node_share
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.planning import Cluster, Model, Schedule, StepLoad, imbalance
from relibra.planning.expected.loads import deal_often, seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.packing.pack import pack
from relibra.planning.plan import Level
from relibra.planning.solve import solve

_MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
_CASES = ((1, 8192, 4), (1, 32768, 3), (2, 8192, 4), (2, 16384, 3))
"""Nodes of 8 ranks, tokens of a rank in a micro-batch, and micro-batches: as many as the recorded texts fill."""
_SHORTER = (256, 1024, 8192)
_PACKED_LENGTH = 1024
"""Shorter sequences are not packed, because thousands of them take minutes."""
_SEEDS = range(3)
PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def cut(count_SPLE: NDArray[np.integer], length: int) -> NDArray[np.int64]:
    """Return the counts `[S, L, E]` of sequences of this length, of counts per piece."""
    pieces = length // PIECE_LENGTH
    num_sequences, num_pieces, *sizes = count_SPLE.shape
    grouped = count_SPLE.reshape(num_sequences, num_pieces // pieces, pieces, *sizes).sum(axis=2)
    return grouped.reshape(-1, *sizes).astype(np.int64)


def _measure(
    count_SLE: NDArray[np.int64], length: int, start: Schedule, cluster: Cluster, seed: int
) -> dict[str, float]:
    """Measure a step after one step of other sequences."""
    num_sequences = start.num_sequences
    order_S = np.random.default_rng(seed).permutation(len(count_SLE))
    past_SLE, now_SLE = count_SLE[order_S[num_sequences : 2 * num_sequences]], count_SLE[order_S[:num_sequences]]
    past, load = (StepLoad.of(each, start, cluster) for each in (past_SLE, now_SLE))
    known = solve(load, start, _MODEL, cluster)
    dealt = seen_load(deal_often(now_SLE, cluster), cluster)
    at_step = solve(load, start, _MODEL, cluster, level=Level.STEP, seen=dealt)
    seen = seen_load(past.load_MLE, cluster)
    foreseen = solve(load, start, _MODEL, cluster, level=Level.HISTORY, seen=seen)
    row = {
        "plain": known.prediction.imbalance_before,
        "history": imbalance(realised_loads(foreseen, load)),
        "step": imbalance(realised_loads(at_step, load)),
        "replay": imbalance(realised_loads(known, load)),
        "copies": len(known.replica_index_Y4) / load.load_MLE[..., 0].size,
        "crossing": cross_node_share(known, now_SLE),
    }
    if length >= _PACKED_LENGTH:
        packing, _ = pack(now_SLE, np.full(num_sequences, length), start, _MODEL, cluster)
        packed_load = StepLoad.of(now_SLE, packing.schedule, cluster)
        packed = solve(packed_load, packing.schedule, _MODEL, cluster, packing=packing)
        row["packed"] = imbalance(realised_loads(packed, packed_load))
        row["packed_crossing"] = cross_node_share(packed, now_SLE)
    return row


def _variance(count_SLE: NDArray[np.int64], domain_S: NDArray[np.int64]) -> float:
    """Return how much sequences of a domain differ, as the evaluation draws it."""
    return RoutingStatistics.of_counts(count_SLE, domain_S, TOP_K).sequence_variance


def _rows() -> Iterator[dict[str, Any]]:
    with np.load(COUNTS) as file:
        count_SPLE, domain_S = file["counts"], np.unique(file["domain"], return_inverse=True)[1]
    for num_nodes, budget, num_micro_batches in _CASES:
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        for length in (*(each for each in _SHORTER if each < budget), budget):
            num_sequences = budget // length * cluster.num_ranks * num_micro_batches
            start = Schedule.round_robin(num_sequences, num_micro_batches, cluster)
            cut_SLE = cut(count_SPLE, length)
            of_seeds = [_measure(cut_SLE, length, start, cluster, seed) for seed in _SEEDS]
            yield {
                "num_nodes": num_nodes,
                "tokens": budget,
                "num_micro_batches": num_micro_batches,
                "length": length,
                "variance": _variance(cut_SLE, np.repeat(domain_S, len(cut_SLE) // len(domain_S))),
                **{key: float(np.mean([row[key] for row in of_seeds])) for key in of_seeds[0]},
            }


def long_sequences() -> str:
    """Return the results on disk as a table."""
    keys = ("plain", "history", "step", "replay", "packed")
    lines = []
    for row in results.read("long_sequences"):
        shares = [
            f"{row[key]:.1%}" if row["num_nodes"] > 1 and key in row else "" for key in ("crossing", "packed_crossing")
        ]
        figures = [f"{row[key]:.3f}" if key in row else "" for key in keys]
        lines.append(
            (
                f"{row['num_nodes']}x8",
                f"{row['tokens']:,}",
                f"{row['length']:,}",
                f"{row['variance']:.2f}",
                *figures,
                f"{row['copies']:.1f}",
                *shares,
            )
        )
    headings = (
        "ranks",
        "tokens of a micro-batch",
        "of a sequence",
        "variance",
        "plain",
        "history",
        "step",
        "replay",
        "replay, packed",
    )
    return markdown((*headings, "copies of a cell", "to other nodes", "the same, packed"), lines)


def main() -> None:
    """Measure, print, and write the results."""
    rows = list(_rows())
    results.show("long sequences", rows)
    with np.load(COUNTS) as file:
        facts, num_sequences = json.loads(str(file["facts"])), len(file["counts"])
    results.write("long_sequences", rows, redundant_slots=2, num_sequences=num_sequences, **facts)
    write_tables(PAGE, {"long_sequences": long_sequences})


if __name__ == "__main__":
    main()
