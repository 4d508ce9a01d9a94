"""How much of a plan's balance is left when some token copies are routed elsewhere than the plan was told.

M rows, L layers, E experts, S sequences, X (row, layer, expert) triples, Y replicas.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.evaluation.cases import DEEPSEEK_LITE, GPT_OSS, question
from relibra.evaluation.assignment import Assignment, at_home, from_pieces
from relibra.evaluation.step_time import balanced_step_time, step_time
from relibra.planning import PlanParams
from relibra.planning.expected.loads import realised_crossing_tokens, realised_replica_tokens
from relibra.planning.load import StepLoad, imbalance
from relibra.planning.plan import Plan
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


def executed(plan: Plan, load: StepLoad) -> Assignment:
    """Return what the ranks compute under `plan` when the routers choose `load`, which has the plan's shape."""
    replica_Y4, sent_Y = plan.quota_index_Q4[plan.is_replica_Q], realised_replica_tokens(plan, load)
    kept_MLE = load.load_MLE.astype(np.int64)
    np.subtract.at(kept_MLE, tuple(replica_Y4[:, :3].T), sent_Y)
    cell_X3 = np.argwhere(kept_MLE)
    home_X = plan.home_rank_LE[cell_X3[:, 1], cell_X3[:, 2]]
    index = np.concatenate([replica_Y4, np.column_stack([cell_X3, home_X])])
    tokens = np.concatenate([sent_Y, kept_MLE[tuple(cell_X3.T)]])
    done = from_pieces(index, tokens, plan.home_rank_LE, load.num_rows)
    # Pieces without tokens are dropped, and the others are sorted, as replicas are.
    crossing_Q = np.zeros(len(done.tokens_Q), dtype=np.int64)
    crossing_Q[done.is_replica_Q] = realised_crossing_tokens(plan, load)[sent_Y > 0]
    return replace(done, crossing_Q=crossing_Q, maps_on_host=True)


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
