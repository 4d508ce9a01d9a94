"""How much of a plan's balance is left when some token copies are routed elsewhere than the plan was told.

L layers, E experts, S sequences.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.evaluation.cases import DEEPSEEK_LITE, GPT_OSS, question
from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.step_time import balanced_step_time, step_time
from relibra.planning import PlanParams
from relibra.planning.load import StepLoad, imbalance
from relibra.planning.solve import solve

Rows = list[dict[str, object]]

_SHARES = (0.0, 0.01, 0.05, 0.10, 0.25)


def mismatch() -> Iterator[Callable[[], Rows]]:
    """Yield cases for both traces, each with a model of the trace's shape."""
    for trace_name, model in ((GPT_OSS, "gpt-oss-20b"), (DEEPSEEK_LITE, "moonlight-16b")):
        for ep in (8, 16, 32):
            yield partial(_measure, trace_name, model, ep)


def _measure(trace_name: str, model: str, ep: int) -> Rows:
    asked = question(model, ep, trace_name=trace_name)
    _, now = asked.steps(seed=0)
    training, cluster = asked.training, asked.cluster
    params = PlanParams(cost=training.planning_cost)
    plan = solve(now.load, now.schedule, training.model.model(), cluster, params)
    found: Rows = []
    for evenly in (False, True):
        for share in _SHARES:
            load = rerouted(now.load, share, seed=1, evenly=evenly)
            done, plain = Assignment.of_plan(plan, load), at_home(load.load_MLE, cluster.identity_placement(plan.model))
            found.append(
                {
                    "trace": trace_name,
                    "ep": ep,
                    "to": "any expert" if evenly else "as others",
                    "share": share,
                    "plain": imbalance(plain.rank_loads_MLR(cluster)),
                    "planned": plan.prediction.imbalance_after,
                    "realised": imbalance(done.rank_loads_MLR(cluster)),
                    "of_balanced": balanced_step_time(load, training).total_s / step_time(done, load, training).total_s,
                }
            )
    return found


def rerouted(load: StepLoad, share: float, seed: int, *, evenly: bool = False) -> StepLoad:
    """Return the load with this share of every sequence's token copies routed to other experts.

    The copies go to experts as the whole step chooses them, or with `evenly` to all experts with equal probability.
    """
    rng = np.random.default_rng(seed)
    counts_SLE = load.counts_SLE.astype(np.int64)
    total_LE = counts_SLE.sum(axis=0)
    other_LE = np.ones(total_LE.shape) if evenly else total_LE.astype(np.float64)
    other_LE /= other_LE.sum(axis=-1, keepdims=True)
    leaving_SLE = rng.binomial(counts_SLE, share)
    arriving_SLE = np.stack([rng.multinomial(leaving_LE.sum(axis=-1), other_LE) for leaving_LE in leaving_SLE])
    return replace(load, counts_SLE=counts_SLE - leaving_SLE + arriving_SLE)
