"""Run policies on the same step: throughput, imbalance, and the costs of each policy."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from relibra.errors import InvalidInput
from relibra.evaluation.estimate import Estimate, estimate
from relibra.evaluation.policies import POLICIES, PUBLISHED, Decision, Policy, Situation
from relibra.evaluation.step_time import StepTime, balanced_time_of, sent_bytes, time_of
from relibra.evaluation.training import Training
from relibra.evaluation.work import even_work, work_of
from relibra.evaluation.workload import Workload
from relibra.planning.job import PlanParams
from relibra.planning.load import imbalance
from relibra.planning.machines.constants import Constants
from relibra.planning.peak import Peak, find_peak
from relibra.planning.plan import Level

RECOMPUTED = {
    "": "recomputing nothing",
    "moe_act": "recomputing activations of experts (moe_act)",
    "moe": "recomputing MoE layers (moe, or full)",
}
"""What the backward may compute again in a MoE layer, in Megatron's words, and for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one policy on one step."""

    policy: str
    step: StepTime
    imbalance: float
    peaks: Mapping[str, Peak]
    """The hottest rank, by what the backward recomputes (`RECOMPUTED`)."""
    of_balanced: Estimate
    """Throughput relative to that of a router that spreads its tokens evenly."""
    over_plain: Estimate
    """Throughput relative to that of plain expert parallelism."""
    over_rivals: Mapping[str, Estimate]
    """Throughput relative to that of each rival that ran before this policy, by name."""
    replicas_per_cell: float
    num_moved_experts: int
    sent_bytes: int
    """The bytes that all ranks together send: weights and gradients of replicas, and experts that move."""
    decide_time_s: float
    """The time that deciding took on this machine; `step` contains only the part that the step waits for."""


def simulate(
    workload: Workload,
    previous: Workload,
    training: Training,
    policies: Iterable[str] = tuple(POLICIES),
    params: PlanParams | None = None,
    on_policy: Callable[[str], None] = lambda name: None,
    num_threads: int = os.cpu_count() or 1,
    others: Mapping[str, Policy] | None = None,
    rivals: Collection[str] = PUBLISHED,
    level: Level = Level.MICRO_BATCHES,
) -> list[Outcome]:
    """Run policies on a step; return their outcomes in the same order, those of `others` last.

    Policies decide with the middles of the ranges of `training`, as a job does that has measured nothing. The estimates
    say how its time may differ if the machines turn out otherwise.

    Args:
        workload: the step.
        previous: the step before it.
        training: the model, the machines and how they train.
        policies: names in `POLICIES`.
        params: how to plan; by default with the cost model that follows from `training`.
        on_policy: called with the name of each policy before it runs.
        num_threads: the threads that planning uses.
        others: further policies, by name.
        rivals: the policies that those after them are compared with.
        level: what relibra knows of the step when it plans; `relibra-packed` always knows its micro-batches.

    Raises:
        InvalidInput: a policy does not exist.
    """
    names = list(policies)
    for name in names:
        if name not in POLICIES:
            raise InvalidInput.of("policy", expected=f"one of {', '.join(POLICIES)}", got=name)
    run = {name: POLICIES[name] for name in names} | dict(others or {})
    situation = Situation(
        workload=workload,
        previous=previous,
        model=training.model.model(),
        params=params or PlanParams(cost=training.planning_cost),
        level=level,
        num_threads=num_threads,
    )
    even = even_work(workload.load, training.model.num_experts, training.cluster)
    ideal = _cache_times(training, lambda other: balanced_time_of(even, other))
    plain = _cache_times(training, _deciding(POLICIES["plain"](situation), training))
    outcomes, before = [], dict[str, _Step]()
    for name, policy in run.items():
        on_policy(name)
        decision = policy(situation)
        assignment = decision.assignment
        step = plain if name == "plain" else _cache_times(training, _deciding(decision, training))
        loads_MLR = assignment.rank_loads_MLR(training.cluster)
        num_cells = assignment.num_rows * len(assignment.home_LE)
        outcomes.append(
            Outcome(
                policy=name,
                step=step(training.constants),
                imbalance=imbalance(loads_MLR),
                peaks={name: find_peak(loads_MLR, training.model.activation_memory(name)) for name in RECOMPUTED},
                of_balanced=_ratio(ideal, step, training),
                over_plain=_ratio(plain, step, training),
                over_rivals={rival: _ratio(theirs, step, training) for rival, theirs in before.items()},
                replicas_per_cell=int(assignment.is_replica_Q.sum()) / num_cells,
                num_moved_experts=int((assignment.home_LE != decision.previous_home_LE).sum()),
                sent_bytes=sent_bytes(assignment, training, decision.previous_home_LE),
                decide_time_s=decision.decide_time_s,
            )
        )
        if name in rivals:
            before[name] = step
    return outcomes


_Step = Callable[[Constants], StepTime]


def _cache_times(training: Training, time: Callable[[Training], StepTime]) -> _Step:
    """Return the step as a function of the constants. Several ratios ask for the same constants."""
    return cache(lambda constants: time(replace(training, constants=constants)))


def _deciding(decision: Decision, training: Training) -> Callable[[Training], StepTime]:
    work = work_of(decision.assignment, decision.load, training.cluster)
    return lambda other: time_of(decision.assignment, work, other, decision.previous_home_LE)


def _ratio(one: _Step, other: _Step, training: Training) -> Estimate:
    def ratio(constants: Constants) -> float:
        return one(constants).total_s / other(constants).total_s

    return estimate(ratio, training.constants, training.ranges)
