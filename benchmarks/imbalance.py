"""The imbalance that plans leave on real routing, by what is known of a step when it is planned.

    python -m benchmarks.imbalance

A seed shuffles the sequences of a trace, and round-robin deals them to micro-batches. In the cases `whole`, the trace
is one step. Otherwise it makes five steps, of which the fifth runs: the steps are `alike`, or the fifth has `other
domains` than the rest. Ranks split the tokens over the copies of the plan when they come. Columns:

- `plain`: plain expert parallelism;
- `eplb_history`, `history`: EPLB and relibra know the micro-batches of the four steps before;
- `step`: relibra knows the sequences of the step, and not its micro-batches;
- `rollout`: relibra knows a rollout that is not replayed: a tenth of the token copies goes to other experts;
- `eplb_oracle`, `replay`: EPLB and relibra know the step itself;
- `bound`, `any_placement`: lower bounds for plans with relibra's homes, and with any.

Figures are means over seeds, but `replay_worst` is that of the worst seed.

Writes `results/imbalance.json`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from relibra.evaluation import eplb_imbalance, model_of
from relibra.evaluation.baselines.eplb import eplb
from relibra.planning import Cluster, Model, Schedule, StepLoad, check_plan, imbalance
from relibra.planning.expected.loads import deal_often, seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.routing import RoutingTrace, count_sequences, read_trace

_TRACES = ("gpt-oss-20b_mmlu", "deepseek-v2-lite_esft")
_STEPS = {"whole": (4, 8, 16, 32), "alike": (4,), "other domains": (4,)}
"""The numbers of micro-batches, by what the steps are."""
_SEEDS = range(3)
_FLIPPED = 0.1
"""Without replay, about a tenth of the routers choose otherwise in training than in the rollout (arXiv 2510.11370)."""


def steps_of(
    trace: RoutingTrace, counts_SLE: NDArray[np.integer], steps: str, rng: np.random.Generator
) -> list[NDArray[np.integer]]:
    """Return the counts of every step, that of the one that runs last."""
    order_S = rng.permutation(trace.num_sequences)
    if steps == "other domains" and trace.domain is not None:
        order_S = order_S[np.argsort(trace.domain[order_S], kind="stable")]
    num_steps = 1 if steps == "whole" else 5
    of_step = trace.num_sequences // num_steps
    return [counts_SLE[order_S[step * of_step : (step + 1) * of_step]] for step in range(num_steps)]


def _flip(counts_SLE: NDArray[np.integer], rng: np.random.Generator) -> NDArray[np.int64]:
    """Route some token copies to other experts, in proportion to how much each expert is used."""
    leaving_SLE = rng.binomial(counts_SLE, _FLIPPED)
    flipped_SLE = counts_SLE - leaving_SLE
    popularity_LE = counts_SLE.sum(axis=0) / counts_SLE.sum(axis=(0, 2))[:, None]
    for layer, popularity_E in enumerate(popularity_LE):
        flipped_SLE[:, layer] += rng.multinomial(leaving_SLE[:, layer].sum(axis=1), popularity_E)
    return flipped_SLE


def _measure(
    counts_of_steps: list[NDArray[np.integer]], model: Model, cluster: Cluster, num_micro_batches: int, seed: int
) -> dict[str, float]:
    schedule = Schedule.round_robin(len(counts_of_steps[0]), num_micro_batches, cluster)
    *past, load = (StepLoad.of(counts_SLE, schedule, cluster) for counts_SLE in counts_of_steps)
    plan = solve(load, schedule, model, cluster)
    check_plan(plan, load.load_MLE)
    dealt = seen_load(deal_often(counts_of_steps[-1], cluster), cluster)
    known = solve(load, schedule, model, cluster, level=Level.STEP, seen=dealt)
    row = {
        "plain": plan.prediction.imbalance_before,
        "step": imbalance(realised_loads(known, load)),
        "eplb_oracle": eplb_imbalance(load.load_MLE, plan),
        "replay": imbalance(realised_loads(plan, load)),
        "bound": plan.prediction.imbalance_bound,
        "any_placement": plan.prediction.imbalance_floor,
        "tokens_of_a_rank": float(load.load_MLE.sum()) / plan.lower_bound_ML.size / cluster.num_ranks,
    }
    if past:
        seen_MLE = np.concatenate([each.load_MLE for each in past])
        history = eplb(load.load_MLE, model, cluster, seen_MLE=seen_MLE)
        row["eplb_history"] = imbalance(history.rank_loads_MLR(cluster))
        seen = seen_load(seen_MLE, cluster)
        forecast = solve(load, schedule, model, cluster, level=Level.HISTORY, seen=seen)
        row["history"] = imbalance(realised_loads(forecast, load))
        rollout = replace(load, counts_SLE=_flip(load.counts_SLE, np.random.default_rng(seed)))
        forecast = solve(rollout, schedule, model, cluster)
        row["rollout"] = imbalance(realised_loads(forecast, load))
    return row


def _rows() -> Iterator[dict[str, object]]:
    for name in _TRACES:
        trace = read_trace(results.TRACES / f"{name}.npz")
        counts_SLE, model = count_sequences(trace), model_of(trace)
        for steps, num_nodes in product(_STEPS, (1, 2, 4)):
            cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=2)
            for num_micro_batches in _STEPS[steps]:
                of_seeds = []
                for seed in _SEEDS:
                    counts_of_steps = steps_of(trace, counts_SLE, steps, np.random.default_rng(seed))
                    of_seeds.append(_measure(counts_of_steps, model, cluster, num_micro_batches, seed))
                yield {
                    "trace": name,
                    "steps": steps,
                    "num_nodes": num_nodes,
                    "num_micro_batches": num_micro_batches,
                    **{key: float(np.mean([row[key] for row in of_seeds])) for key in of_seeds[0]},
                    "replay_worst": max(row["replay"] for row in of_seeds),
                }


def main() -> None:
    """Measure, print the table and write the results."""
    rows = list(_rows())
    results.show("imbalance with 2 redundant slots, means of 3 seeds", rows)
    results.write("imbalance", rows, redundant_slots=2, flipped=_FLIPPED)


if __name__ == "__main__":
    main()
