"""What plans are worth when some rows are routed elsewhere than recorded, on the traces themselves."""

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.evaluation_cases import DEEPSEEK_LITE, GPT_OSS, question
from relibra.evaluation.assignment import at_home
from relibra.evaluation.mismatch import executed, rerouted
from relibra.evaluation.step_time import balanced_step_time, step_time
from relibra.planning import PlanParams
from relibra.planning.load import imbalance
from relibra.planning.solve import solve

Rows = list[dict[str, object]]

_SHARES = (0.0, 0.01, 0.05, 0.10, 0.25)


def mismatch() -> Iterator[Callable[[], Rows]]:
    """Both traces, each with the routing of its own model."""
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
            done, plain = executed(plan, load), at_home(load.load_MLE, cluster.identity_placement(plan.model))
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
