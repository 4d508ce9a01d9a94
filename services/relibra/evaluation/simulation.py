"""All policies on the same step: throughput, imbalance, and what each of them costs."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from relibra.errors import InvalidInput
from relibra.evaluation.cell_time import Training
from relibra.evaluation.policies import POLICIES, Situation
from relibra.evaluation.step_time import StepTime, balanced_step_time, step_time
from relibra.evaluation.workload import Workload
from relibra.planning.load import imbalance
from relibra.planning.topology import PlanParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy on one step."""

    policy: str
    step: StepTime
    imbalance: float
    of_balanced: float
    """Throughput over that of a router that spreads tokens evenly."""
    replicas_per_cell: float
    num_moved_experts: int
    decide_time_s: float
    """What deciding took here; only what a step waits for is in `step`."""


def simulate(
    workload: Workload,
    previous: Workload,
    training: Training,
    policies: Iterable[str] = tuple(POLICIES),
    params: PlanParams | None = None,
    on_policy: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Run policies on a step; `on_policy` hears of each before it starts.

    Raises:
        InvalidInput: a policy that does not exist.
        Unsupported: a policy needs a package that is not installed.
    """
    names = list(policies)
    for name in names:
        if name not in POLICIES:
            raise InvalidInput.of("policy", expected=f"one of {', '.join(POLICIES)}", got=name)
    situation = Situation(
        workload=workload,
        previous=previous,
        model=training.model.model(),
        params=params or PlanParams(cost=training.planning_cost),
    )
    ideal_s = balanced_step_time(workload.load, training).total_s
    outcomes = []
    for name in names:
        on_policy(name)
        started = time.perf_counter()
        decision = POLICIES[name](situation)
        decide_time_s = time.perf_counter() - started
        assignment = decision.assignment
        step = step_time(assignment, decision.load, training, decision.previous_home_LE)
        num_cells = assignment.num_rows * len(assignment.home_LE)
        outcomes.append(
            Outcome(
                policy=name,
                step=step,
                imbalance=imbalance(assignment.rank_loads_MLR(training.cluster)),
                of_balanced=ideal_s / step.total_s,
                replicas_per_cell=int(assignment.is_replica_Q.sum()) / num_cells,
                num_moved_experts=int((assignment.home_LE != decision.previous_home_LE).sum()),
                decide_time_s=decide_time_s,
            )
        )
    return outcomes
