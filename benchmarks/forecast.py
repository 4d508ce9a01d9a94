"""The cost of planning without foresight: plan for expected loads, then execute the real ones.

    python -m benchmarks.forecast

The sequences of a trace make five steps. Four are past; the fifth runs, and ranks split its tokens over the replicas
that there are. Either the steps are shuffled together, or the fifth has other domains than the rest. The columns are:

- *forecast*, *last step*: homes and replicas chosen from the micro-batches of all past steps, or of the last one;
- *rollout*: plans for a rollout that is not replayed: a tenth of the token copies goes to other experts in training;
- *foresight*: plans for the real loads.

Writes `results/forecast.json`.
"""

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import results
from relibra.evaluation import model_of
from relibra.evaluation.baselines.eplb import eplb
from relibra.planning import Cluster, Model, Schedule, StepLoad, imbalance
from relibra.planning.expected.loads import seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.load import home_loads
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.routing import RoutingTrace, count_sequences, read_trace

_TRACES = ("gpt-oss-20b_mmlu", "deepseek-v2-lite_esft")
_NUM_STEPS = 5
_NUM_MICRO_BATCHES = 4
_SEEDS = range(3)
_FLIPPED = 0.1
"""Without replay, about a tenth of the routers choose otherwise in training than in the rollout (arXiv 2510.11370)."""
_COLUMNS = (
    "plain",
    "eplb_history",
    "forecast",
    "last_step",
    "eplb_oracle",
    "rollout",
    "foresight",
)


def _order(trace: RoutingTrace, steps: str, rng: np.random.Generator) -> NDArray[np.int64]:
    order_S = rng.permutation(trace.num_sequences)
    if steps == "other domains" and trace.domain is not None:
        order_S = order_S[np.argsort(trace.domain[order_S], kind="stable")]
    return order_S


def _flip(counts_SLE: NDArray[np.integer], rng: np.random.Generator) -> NDArray[np.int64]:
    """Route some token copies to other experts, in proportion to how much each expert is used."""
    leaving_SLE = rng.binomial(counts_SLE, _FLIPPED)
    flipped_SLE = counts_SLE - leaving_SLE
    popularity_LE = counts_SLE.sum(axis=0) / counts_SLE.sum(axis=(0, 2))[:, None]
    for layer, popularity_E in enumerate(popularity_LE):
        flipped_SLE[:, layer] += rng.multinomial(leaving_SLE[:, layer].sum(axis=1), popularity_E)
    return flipped_SLE


def _measure(counts_SLE: NDArray[np.integer], model: Model, cluster: Cluster, seed: int) -> dict[str, float]:
    per_step = len(counts_SLE) // _NUM_STEPS
    schedule = Schedule.round_robin(per_step, _NUM_MICRO_BATCHES, cluster)
    starts = range(0, _NUM_STEPS * per_step, per_step)
    *past, load = (StepLoad.of(counts_SLE[start : start + per_step], schedule, cluster) for start in starts)
    previous = [each.load_MLE for each in past]

    def forecast(steps: list[NDArray[np.int64]]) -> float:
        seen = seen_load(np.concatenate(steps), cluster)
        plan = solve(load, schedule, model, cluster, basis=Level.HISTORY, seen=seen)
        return imbalance(realised_loads(plan, load))

    def foresight(seen: StepLoad, basis: Basis) -> float:
        return imbalance(realised_loads(solve(seen, schedule, model, cluster, basis=basis), load))

    rollout = replace(load, counts_SLE=_flip(load.counts_SLE, np.random.default_rng(seed)))
    history = eplb(load.load_MLE, model, cluster, seen_MLE=np.concatenate(previous))
    return {
        "plain": imbalance(home_loads(load.load_MLE, cluster.identity_placement(model), cluster.num_ranks)),
        "eplb_history": imbalance(history.rank_loads_MLR(cluster)),
        "forecast": forecast(previous),
        "last_step": forecast(previous[-1:]),
        "eplb_oracle": imbalance(eplb(load.load_MLE, model, cluster).rank_loads_MLR(cluster)),
        "rollout": foresight(rollout, Basis.ROLLOUT),
        "foresight": foresight(load, Basis.REPLAY),
    }


def main() -> None:
    """Measure, print means over seeds and write the results."""
    rows: list[dict[str, object]] = []
    table = Table(title=f"imbalance of the fifth step, 2 redundant slots, {_NUM_MICRO_BATCHES} micro-batches")
    for heading in ("trace", "fifth step", "nodes", "tokens/rank", *_COLUMNS):
        table.add_column(heading.replace("_", " "), justify="left" if heading in ("trace", "fifth step") else "right")
    for name in _TRACES:
        trace = read_trace(results.TRACES / f"{name}.npz")
        counts_SLE, length_S, model = count_sequences(trace), np.diff(trace.offsets), model_of(trace)
        for steps, num_nodes in product(("alike", "other domains"), (1, 2, 4)):
            cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
            found = []
            for seed in _SEEDS:
                order_S = _order(trace, steps, np.random.default_rng(seed))
                found.append(_measure(counts_SLE[order_S], model, cluster, seed))
            mean = {column: float(np.mean([each[column] for each in found])) for column in _COLUMNS}
            tokens = length_S.sum() / _NUM_STEPS * model.top_k / cluster.num_ranks / _NUM_MICRO_BATCHES
            table.add_row(
                name, steps, f"{num_nodes}x8", f"{tokens:.0f}", *(f"{mean[column]:.4f}" for column in _COLUMNS)
            )
            rows.append({"trace": name, "fifth_step": steps, "num_nodes": num_nodes, "tokens_of_a_rank": tokens} | mean)
    Console(width=180).print(table)
    results.write("forecast", rows, redundant_slots=2, num_micro_batches=_NUM_MICRO_BATCHES, flipped=_FLIPPED)


if __name__ == "__main__":
    main()
