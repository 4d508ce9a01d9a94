"""What a driver gains that asks for a packing in every step, and how long it waits.

    python -m benchmarks.pack_online

Three steps in a row, each planned after the one before, with the driver's own schedule and with a packed one.
*Recorded* steps are two thirds of the sequences of a trace, drawn anew for each step and balanced by length; ranks of
*filled* steps are filled as in `benchmarks.crossing`, and the price of dispatch is the one there. Time is the modelled
time of experts and dispatch, and waits are processor time. *Synthetic* steps are one step three times. Writes
`results/pack_online.json`.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.crossing import FILLED_TOKENS, MICRO_BATCHES, SIZES
from relibra.evaluation import model_of
from relibra.evaluation.dispatcher import DispatchDtype
from relibra.evaluation.workload import tiled
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.packing.length_balance import length_balanced
from relibra.planning.packing.repack import repack
from relibra.planning.solve import solve
from relibra.routing import RoutingTrace, count_sequences, read_trace

_NUM_STEPS = 3
_UNLIMITED_TOKENS = 10**9
_WAITS = ((512, 48, 128, 4), (1024, 58, 256, 8))
"""Sequences, layers, experts and nodes of synthetic steps."""


class _Step(NamedTuple):
    counts_SLE: NDArray[np.integer]
    length_S: NDArray[np.int64]
    schedule: Schedule


def _recorded(trace: RoutingTrace, cluster: Cluster) -> Iterator[_Step]:
    counts_SLE, length_S = count_sequences(trace), np.diff(trace.offsets)
    for seed in range(_NUM_STEPS):
        drawn_S = np.random.default_rng(seed).permutation(len(length_S))[: len(length_S) * 2 // 3]
        schedule = length_balanced(length_S[drawn_S], MICRO_BATCHES, cluster, _UNLIMITED_TOKENS)
        yield _Step(counts_SLE[drawn_S], length_S[drawn_S], schedule)


def _filled(trace: RoutingTrace, cluster: Cluster) -> Iterator[_Step]:
    for seed in range(_NUM_STEPS):
        step = tiled(trace, cluster, MICRO_BATCHES, FILLED_TOKENS, seed=seed)
        yield _Step(step.counts_SLE, step.length_S, step.schedule)


def _drawn(num_sequences: int, num_layers: int, num_experts: int, cluster: Cluster) -> _Step:
    """Draw sequences of log-normal lengths; each routes like one of 16 kinds, with a deviation of its own."""
    rng = np.random.default_rng(0)
    length_S = np.clip(rng.lognormal(6.5, 0.8, num_sequences), 16, 8192).astype(np.int64)
    shape = (num_layers, num_experts)
    kind_KLE = rng.normal(0, 0.8, (1, *shape)) + rng.normal(0, 0.5, (16, *shape))
    popularity_SLE = np.exp(kind_KLE[rng.integers(0, 16, num_sequences)] + rng.normal(0, 0.3, (num_sequences, *shape)))
    popularity_SLE /= popularity_SLE.sum(axis=-1, keepdims=True)
    counts_SLE = rng.poisson(popularity_SLE * 8 * length_S[:, None, None]).astype(np.uint16)
    return _Step(counts_SLE, length_S, length_balanced(length_S, 16, cluster, _UNLIMITED_TOKENS))


def _run(steps: list[_Step], model: Model, cluster: Cluster, params: PlanParams, is_packed: bool) -> dict[str, Any]:
    """Plan steps in a row; return the modelled time of all, and how long each packing took."""
    home_LE, time_us, waits_s = None, 0.0, []
    for counts_SLE, length_S, start in steps:
        schedule, started = start, time.process_time()
        if is_packed:
            packing, _ = repack(counts_SLE, length_S, start, model, cluster, params, home_LE)
            schedule = packing.schedule
            waits_s.append(time.process_time() - started)
        load = StepLoad.of(counts_SLE, schedule, cluster)
        plan = solve(load, schedule, model, cluster, params, home_LE)
        check_plan(plan, load.load_MLE)
        home_LE, time_us = plan.home_rank_LE, time_us + plan.prediction.time_us
    return {"time_us": time_us, "waits_s": waits_s}


def _rows() -> Iterator[dict[str, Any]]:
    for (name, (hidden, intermediate)), num_nodes in product(SIZES.items(), (2, 4)):
        trace, cluster = (
            read_trace(results.TRACES / f"{name}.npz"),
            Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2),
        )
        size_bytes = 6 * hidden * intermediate
        model = replace(model_of(trace), expert_weight_size_bytes=size_bytes, expert_state_size_bytes=7 * size_bytes)
        params = PlanParams(cost=CostModel.of_expert(size_bytes, DispatchDtype.BF16.token_size_bytes(hidden)))
        for sequences, steps in (("recorded", _recorded), ("filled", _filled)):
            made = list(steps(trace, cluster))
            own, packed = (_run(made, model, cluster, params, is_packed) for is_packed in (False, True))
            saved = 1 - packed["time_us"] / own["time_us"]
            yield {"load": name, "num_nodes": num_nodes, "sequences": sequences, "saved": saved, **packed}
    for num_sequences, num_layers, num_experts, num_nodes in _WAITS:
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
        size_bytes = 6 * 2048 * 768
        model = Model(
            num_layers=num_layers,
            num_experts=num_experts,
            top_k=8,
            expert_weight_size_bytes=size_bytes,
            expert_state_size_bytes=7 * size_bytes,
        )
        params = PlanParams(cost=CostModel.of_expert(size_bytes, DispatchDtype.BF16.token_size_bytes(2048)))
        step = _drawn(num_sequences, num_layers, num_experts, cluster)
        load = f"{num_sequences} x {num_layers} x {num_experts}"
        packed = _run([step] * _NUM_STEPS, model, cluster, params, True)
        own = _run([step] * _NUM_STEPS, model, cluster, params, False)
        saved = 1 - packed["time_us"] / own["time_us"]
        yield {"load": load, "num_nodes": num_nodes, "sequences": "synthetic", "saved": saved, **packed}


def main() -> None:
    """Measure, print the table and write the results."""
    table = Table(title="packing in every step beside the driver's own schedule")
    for heading in ("load", "nodes", "sequences", "modelled time", "first wait", "later waits"):
        table.add_column(heading)
    rows = list(_rows())
    for row in rows:
        first_s, *later_s = row["waits_s"]
        times = (f"{-row['saved']:.1%}", f"{first_s:.2f} s", f"{max(later_s):.2f} s")
        table.add_row(row["load"], f"{row['num_nodes']}x8", row["sequences"], *times)
    Console(width=120).print(table)
    results.write("pack_online", rows, num_steps=_NUM_STEPS, num_micro_batches=MICRO_BATCHES)


if __name__ == "__main__":
    main()
