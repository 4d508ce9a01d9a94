"""Why a low end of the share of balance stays below 96 %: its distance to 100 %, split by cause.

A row is a model on H100 whose worst corner of the constants is below the aim. The parts are those of relibra's step at
that corner beyond the balanced step there, over relibra's step, so that they add up to the distance:

- `imbalance`: the slowest rank has more tokens than the mean rank; of it `floor` in every plan with the same homes;
- `tiles`: experts of unequal sizes fill their last tiles in part;
- `dispatch`: the busiest link carries more than with an even router;
- `transfers`: of replicas; of it `exposed` that nothing hides, and the rest is what hidden ones take from attention;
- `host`: mapping tokens to copies, and devices that wait for their hosts;
- `moves`: experts that move, with the share of the first placement.

`replanned` is the share of balance at the same corner if the job had measured its constants and planned with them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks import results
from benchmarks.evaluation.cases import Case, Rows, question
from benchmarks.evaluation.page import markdown
from relibra.evaluation.estimate import corners
from relibra.evaluation.policies import Decision, Situation
from relibra.evaluation.step_time import StepTime, balanced_time_of, time_of
from relibra.evaluation.training import Training
from relibra.evaluation.work import even_work, work_of
from relibra.evaluation.workload import Workload
from relibra.planning import PlanParams, imbalance
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.machines.constants import Constants
from relibra.planning.machines.dispatcher import Dispatcher

AIM = 0.96
PARTS = ("imbalance", "tiles", "dispatch", "transfers", "host", "moves")
WITHIN = {"imbalance": "floor", "transfers": "exposed"}
"""What of a part is shown beside it."""


def below() -> list[dict[str, object]]:
    """Return the model, EP size, dispatcher and low end of every row of the presets that misses the aim."""
    return [
        {**{key: row[key] for key in ("model", "ep", "dispatcher")}, "low_end": row["of_balanced_range"][0]}
        for row in results.read("evaluation-presets")
        if row["policy"] == "relibra" and row["of_balanced_range"][0] < AIM
    ]


def low_ends() -> Iterator[Case]:
    """Yield a case for every row of the presets on disk that misses the aim."""
    for row in below():
        yield partial(_rows, str(row["model"]), int(str(row["ep"])), Dispatcher(str(row["dispatcher"])))


def _rows(model: str, ep: int, dispatcher: Dispatcher) -> Rows:
    asked = question(model, ep, dispatcher=dispatcher)
    before, now = asked.steps(seed=0)
    training = asked.training
    even = even_work(now.load, training.model.num_experts, training.cluster)
    decision = _planned(before, now, training)
    work = work_of(decision.assignment, decision.load, training.cluster)

    def both(constants: Constants) -> tuple[StepTime, StepTime]:
        at = replace(training, constants=constants)
        return time_of(decision.assignment, work, at, decision.previous_home_LE), balanced_time_of(even, at)

    def of_balance(constants: Constants) -> float:
        ours, balanced = both(constants)
        return balanced.total_s / ours.total_s

    worst, _ = corners(of_balance, training.constants, training.ranges)
    ours, balanced = both(worst)
    unhidden, _ = both(replace(worst, weight_sm_share=0.0, gradient_sm_share=0.0))
    loads_MLR = decision.assignment.rank_loads_MLR(training.cluster)
    bound_ML = lower_bound_ML(now.load.load_MLE, decision.assignment.home_LE, training.cluster)
    uneven = imbalance(loads_MLR) - 1
    seconds = {
        "imbalance": uneven * balanced.experts_s,
        "tiles": ours.experts_s - (1 + uneven) * balanced.experts_s,
        "dispatch": ours.dispatch_s - balanced.dispatch_s,
        "transfers": ours.transfer_s,
        "host": ours.decision_s + ours.host_s - balanced.host_s,
        "moves": ours.reorder_s + ours.first_placement_s,
        "exposed": unhidden.transfer_s,
        "floor": float(bound_ML.sum() / loads_MLR.mean(axis=-1).sum() - 1) * balanced.experts_s,
    }
    at_worst = replace(training, constants=worst)
    known = _planned(before, now, at_worst)
    known_work = work_of(known.assignment, known.load, training.cluster)
    replanned = time_of(known.assignment, known_work, at_worst, known.previous_home_LE)
    return [
        {
            "policy": "relibra",
            "model": model,
            "ep": ep,
            "dispatcher": dispatcher.value,
            "low_end": of_balance(worst),
            **{name: value / ours.total_s for name, value in seconds.items()},
            "replanned": balanced.total_s / replanned.total_s,
        }
    ]


def _planned(before: Workload, now: Workload, training: Training) -> Decision:
    """Return what relibra decides in a job that plans with these constants."""
    params = PlanParams(cost=training.planning_cost)
    return Situation(workload=now, previous=before, model=training.model.model(), params=params, num_threads=1).planned


def deciding(row: dict[str, float]) -> str:
    """Return the part that costs most."""
    return max(PARTS, key=row.__getitem__)


def low_ends_by_bound() -> str:
    """Return the split of every low end below the aim."""
    lines = []
    for row in sorted(
        results.read("evaluation-low_ends"), key=lambda row: (row["model"], row["ep"], row["dispatcher"])
    ):
        parts = [f"{row[name]:.1%}" + (f" ({row[WITHIN[name]]:.1%})" if name in WITHIN else "") for name in PARTS]
        where = (row["model"], row["ep"], row["dispatcher"], f"{row['low_end']:.1%}")
        lines.append((*where, *parts, deciding(row), f"{row['replanned']:.1%}"))
    parts = [f"{name} ({WITHIN[name]})" if name in WITHIN else name for name in PARTS]
    return markdown(("model", "EP", "dispatcher", "low end", *parts, "decides", "replanned"), lines)
