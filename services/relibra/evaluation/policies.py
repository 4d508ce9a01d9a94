"""Policies that balance a step: relibra and its parts, the published ways, and plain expert parallelism.

M rows, L layers, E experts.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.baselines.eplb import eplb
from relibra.evaluation.baselines.moonep import moonep
from relibra.evaluation.baselines.ultraep import ultraep
from relibra.evaluation.renaming import rename
from relibra.evaluation.workload import Workload
from relibra.planning.expected.loads import deal_often, seen_load
from relibra.planning.expected.replicas import foresee_layer
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad
from relibra.planning.packing.pack import pack
from relibra.planning.plan import Level, Plan
from relibra.planning.prices import price_replicas
from relibra.planning.replicas.replicate import in_all_rows, replicate
from relibra.planning.solve import solve
from relibra.planning.traffic import Traffic

_Decided = TypeVar("_Decided")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The input of a policy."""

    workload: Workload
    previous: Workload
    """The step before; policies without foresight see only this one."""
    model: Model
    params: PlanParams
    level: Level = Level.MICRO_BATCHES
    """What relibra knows of the step when it plans its copies; at level history, the step before."""
    num_threads: int = os.cpu_count() or 1
    """The threads that planning uses; their number does not change a plan."""
    reorders_always: bool = False
    """Whether homes may move where copies suffice, as with `reorder=always` in a plug-in's job."""

    @property
    def cluster(self) -> Cluster:
        """The EP groups."""
        return self.workload.cluster

    @property
    def planned_by(self) -> PlanParams:
        """How relibra plans: as `params` say, with homes that stay where they stay in a plug-in's job."""
        suffices = self.cluster.copies_suffice and not self.reorders_always
        return replace(self.params, homes_stay=self.params.homes_stay or suffices)

    def seen_at(self, level: Level) -> StepLoad:
        """Return the micro-batches that relibra plans for if it knows this much of the step."""
        match level:
            case Level.HISTORY:
                return seen_load(self.previous.load.load_MLE, self.cluster)
            case Level.STEP:  # other deals of the same sequences
                return seen_load(deal_often(self.workload.counts_SLE, self.cluster), self.cluster)
            case Level.MICRO_BATCHES:
                return self.workload.load

    @property
    def load_MLE(self) -> NDArray[np.int64]:
        """The token copies of every cell."""
        return self.workload.load.load_MLE

    @cached_property
    def planned(self) -> "Decision":
        """What relibra decides with the slots of the job."""
        return _plan(self, self.level)

    @cached_property
    def previous_home_LE(self) -> NDArray[np.int32]:
        """Relibra's home ranks in the step before."""
        before = self.previous
        plan = solve(
            before.load, before.schedule, self.model, self.cluster, self.planned_by, num_threads=self.num_threads
        )
        return plan.home_rank_LE


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The output of a policy."""

    assignment: Assignment
    load: StepLoad
    """The load that the assignment is for; packing changes the schedule and so the cells."""
    previous_home_LE: NDArray[np.int32]
    """The home ranks of the same policy in the step before."""
    decide_time_s: float
    """The time that deciding took on this machine."""


Policy = Callable[[Situation], Decision]


def _time_decision(decide: Callable[[], _Decided]) -> tuple[_Decided, float]:
    began_s = time.perf_counter()
    decided = decide()
    return decided, time.perf_counter() - began_s


def _staying(function: Callable[[NDArray[np.int64], Model, Cluster], Assignment]) -> Policy:
    """Return a policy that leaves every expert at the home of plain expert parallelism."""

    def decide(situation: Situation) -> Decision:
        load_MLE, model, cluster = situation.load_MLE, situation.model, situation.cluster
        assignment, decide_time_s = _time_decision(lambda: function(load_MLE, model, cluster))
        return Decision(
            assignment=assignment,
            load=situation.workload.load,
            previous_home_LE=assignment.home_LE,
            decide_time_s=decide_time_s,
        )

    return decide


def _plain(load_MLE: NDArray[np.int64], model: Model, cluster: Cluster) -> Assignment:
    return at_home(load_MLE, cluster.identity_placement(model))


def _eplb_oracle(situation: Situation) -> Decision:
    load_MLE, model, cluster = situation.load_MLE, situation.model, situation.cluster
    previous_LE = eplb(situation.previous.load.load_MLE, model, cluster).home_LE
    assignment, decide_time_s = _time_decision(lambda: eplb(load_MLE, model, cluster))
    return Decision(
        assignment=rename(assignment, previous_LE, cluster),
        load=situation.workload.load,
        previous_home_LE=previous_LE,
        decide_time_s=decide_time_s,
    )


def _eplb_history(situation: Situation) -> Decision:
    """Decide as deployed EPLB does: place for the loads of the previous step.

    The simulation charges the first move to that placement, and no later one.
    """
    seen_MLE = situation.previous.load.load_MLE
    load_MLE, model, cluster = situation.load_MLE, situation.model, situation.cluster
    assignment, decide_time_s = _time_decision(lambda: eplb(load_MLE, model, cluster, seen_MLE))
    return Decision(
        assignment=assignment,
        load=situation.workload.load,
        previous_home_LE=assignment.home_LE,
        decide_time_s=decide_time_s,
    )


def _eplb_async(situation: Situation) -> Decision:
    """Decide as EPLB does in vLLM and SGLang: every layer has slots of its own, and moves hide in the background.

    vLLM places anew every 3000 steps, with `use_async` (`config/parallel.py`, `EPLBConfig`), and SGLang every 1000, or
    only if balance is bad (`--eplb-rebalance-num-iterations`, `--eplb-min-rebalancing-utilization-threshold`). Here
    EPLB places anew in every step, and a move costs nothing, so no interval and no threshold does better.
    """
    decided = _eplb_history(situation)
    return replace(decided, assignment=replace(decided.assignment, copies_stay=True))


def _plan(situation: Situation, level: Level) -> Decision:
    cluster = situation.cluster
    previous_LE = situation.previous_home_LE
    load, schedule, seen = situation.workload.load, situation.workload.schedule, situation.seen_at(level)
    model, params, num_threads = situation.model, situation.planned_by, situation.num_threads
    plan, decide_time_s = _time_decision(
        lambda: solve(load, schedule, model, cluster, params, previous_LE, None, num_threads, level, seen)
    )
    return Decision(
        assignment=Assignment.of_plan(plan, load), load=load, previous_home_LE=previous_LE, decide_time_s=decide_time_s
    )


def _relibra(situation: Situation) -> Decision:
    return situation.planned


def reordering(situation: Situation) -> Decision:
    """Decide as relibra does in a job with `reorder=always`."""
    return replace(situation, reorders_always=True).planned


def with_slots(policy: Policy, redundant_slots: int) -> Policy:
    """Return a policy that has another number of slots than the job."""

    def decide(situation: Situation) -> Decision:
        cluster = replace(situation.cluster, redundant_slots=redundant_slots)
        return policy(replace(situation, workload=replace(situation.workload, cluster=cluster)))

    return decide


def replayed(situation: Situation) -> Decision:
    """Decide as relibra does in a job that replays routing, whatever the situation knows."""
    return _plan(situation, Level.MICRO_BATCHES)


def other_copies(redundant_slots: int) -> Policy:
    """Return relibra with other copies, for another number of slots, beside the homes for the job's own number."""

    def decide(situation: Situation) -> Decision:
        planned = situation.planned
        return _copies(situation, planned.assignment.home_LE, planned.previous_home_LE, redundant_slots)

    return decide


def _relibra_packed(situation: Situation) -> Decision:
    workload, model, cluster, params = situation.workload, situation.model, situation.cluster, situation.planned_by
    previous_LE = situation.previous_home_LE

    def plan_packed() -> tuple[Plan, StepLoad]:
        counts_SLE, length_S = workload.counts_SLE, workload.length_S
        packing, _ = pack(counts_SLE, length_S, workload.schedule, model, cluster, None, params, previous_LE)
        load = workload.load_under(packing.schedule)
        num_threads = situation.num_threads
        return solve(load, packing.schedule, model, cluster, params, previous_LE, packing, num_threads), load

    (plan, load), decide_time_s = _time_decision(plan_packed)
    return Decision(
        assignment=Assignment.of_plan(plan, load), load=load, previous_home_LE=previous_LE, decide_time_s=decide_time_s
    )


def _replicate_only(situation: Situation) -> Decision:
    home_LE = situation.cluster.identity_placement(situation.model)
    return _copies(situation, home_LE, home_LE, situation.cluster.redundant_slots)


def _copies(
    situation: Situation, home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], redundant_slots: int
) -> Decision:
    """Decide on copies alone, for homes that are known."""
    load, params, is_foreseen = situation.workload.load, situation.params, situation.level < Level.MICRO_BATCHES
    cluster, seen = replace(situation.cluster, redundant_slots=redundant_slots), situation.seen_at(situation.level)
    counting = params.counting_copies(situation.model, cluster)
    price = price_replicas(counting, seen.load_MLE, situation.model, cluster)
    traffic, choose = Traffic.of(seen, cluster, counting), foresee_layer if is_foreseen else None
    (index_Y4, _), decide_time_s = _time_decision(
        lambda: replicate(seen.load_MLE, home_LE, cluster, price, situation.num_threads, choose, traffic)
    )
    if is_foreseen:
        index_Y4 = in_all_rows(index_Y4, load.num_rows)
    assignment = Assignment.of_replicas(load, home_LE, index_Y4, cluster)
    return Decision(assignment=assignment, load=load, previous_home_LE=previous_LE, decide_time_s=decide_time_s)


POLICIES: dict[str, Policy] = {
    "plain": _staying(_plain),
    "eplb-history": _eplb_history,
    "eplb-async": _eplb_async,
    "eplb-oracle": _eplb_oracle,
    "ultraep": _staying(ultraep),
    "moonep": _staying(moonep),
    "reorder-only": with_slots(_relibra, 0),  # planning balances ranks then, instead of nodes
    "replicate-only": _replicate_only,
    "relibra": _relibra,
    "relibra-packed": _relibra_packed,
}
"""The policies by name, in the order of tables: plain, the published ways, relibra's parts, relibra."""


PUBLISHED = ("eplb-history", "eplb-async", "eplb-oracle", "ultraep", "moonep")
"""The published ways that relibra must not be slower than: replicas made for the last step, for this step, or for every
cell when its router has run."""
OWN_SLOTS = ("moonep",)
"""The ways that set their own number of slots, whatever the job has."""
