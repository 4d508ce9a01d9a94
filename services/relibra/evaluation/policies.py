"""Ways of balancing a step, side by side: relibra's, the published ones, and none.

M rows, L layers, E experts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation import baselines
from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.workload import Workload
from relibra.planning.economy import price_replicas
from relibra.planning.load import StepLoad
from relibra.planning.pack import pack
from relibra.planning.replicate import replicate
from relibra.planning.solve import solve
from relibra.planning.topology import Cluster, Model, PlanParams


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a policy may look at."""

    workload: Workload
    previous: Workload
    """The step before, which those see who do not look ahead."""
    model: Model
    params: PlanParams

    @property
    def cluster(self) -> Cluster:
        """The EP groups."""
        return self.workload.cluster

    @property
    def load_MLE(self) -> NDArray[np.int64]:
        """Token copies of every cell."""
        return self.workload.load.load_MLE


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a policy decides."""

    assignment: Assignment
    load: StepLoad
    """What it is for: another schedule has other cells."""
    previous_home_LE: NDArray[np.int32]
    """Where the same policy had experts in the step before."""


Policy = Callable[[Situation], Decision]


def _baseline(function: Callable[[NDArray[np.int64], Model, Cluster], Assignment]) -> Policy:
    def decide(situation: Situation) -> Decision:
        before = function(situation.previous.load.load_MLE, situation.model, situation.cluster)
        return Decision(
            assignment=function(situation.load_MLE, situation.model, situation.cluster),
            load=situation.workload.load,
            previous_home_LE=before.home_LE,
        )

    return decide


def _eplb_history(situation: Situation) -> Decision:
    """EPLB as it is deployed: made for what the previous step did, kept where it was made for the one before."""
    seen_MLE = situation.previous.load.load_MLE
    assignment = baselines.eplb(situation.load_MLE, situation.model, situation.cluster, seen_MLE)
    return Decision(assignment=assignment, load=situation.workload.load, previous_home_LE=assignment.home_LE)


def _previous_home_LE(situation: Situation) -> NDArray[np.int32]:
    before, model, cluster = situation.previous, situation.model, situation.cluster
    return solve(before.load, before.schedule, model, cluster, situation.params).home_rank_LE


def _relibra(situation: Situation) -> Decision:
    previous_LE = _previous_home_LE(situation)
    load, schedule = situation.workload.load, situation.workload.schedule
    plan = solve(load, schedule, situation.model, situation.cluster, situation.params, previous_LE)
    return Decision(assignment=Assignment.of_plan(plan), load=load, previous_home_LE=previous_LE)


def _relibra_packed(situation: Situation) -> Decision:
    previous_LE, workload = _previous_home_LE(situation), situation.workload
    model, cluster, params = situation.model, situation.cluster, situation.params
    packing, _ = pack(
        workload.counts_SLE, workload.length_S, workload.schedule, model, cluster, None, params, previous_LE
    )
    load = workload.load_under(packing.schedule)
    plan = solve(load, packing.schedule, model, cluster, params, previous_LE, packing)
    return Decision(assignment=Assignment.of_plan(plan), load=load, previous_home_LE=previous_LE)


def _reorder_only(situation: Situation) -> Decision:
    decision = _relibra(situation)
    assignment = at_home(situation.load_MLE, decision.assignment.home_LE)
    return Decision(assignment=assignment, load=decision.load, previous_home_LE=decision.previous_home_LE)


def _replicate_only(situation: Situation) -> Decision:
    home_LE = situation.cluster.identity_placement(situation.model)
    priced = price_replicas(situation.params, situation.load_MLE, situation.model, situation.cluster)
    quotas, _ = replicate(situation.load_MLE, home_LE, situation.cluster, priced)
    assignment = Assignment(
        home_LE=home_LE, index_Q4=quotas.index_Q4, tokens_Q=quotas.tokens_Q, num_rows=len(situation.load_MLE)
    )
    return Decision(assignment=assignment, load=situation.workload.load, previous_home_LE=home_LE)


POLICIES: dict[str, Policy] = {
    "plain": _baseline(baselines.identity),
    "longest-first": _baseline(baselines.longest_first),
    "whole-experts": _baseline(baselines.whole_experts),
    "eplb-history": _eplb_history,
    "eplb-oracle": _baseline(baselines.eplb),
    "eplb-per-micro-batch": _baseline(baselines.eplb_per_micro_batch),
    "lplb": _baseline(baselines.lplb),
    "llep": _baseline(baselines.llep),
    "ultraep": _baseline(baselines.ultraep),
    "reorder-only": _reorder_only,
    "replicate-only": _replicate_only,
    "relibra": _relibra,
    "relibra-packed": _relibra_packed,
}
"""By name, in the order of tables: none, the published ones, then relibra's parts and the whole."""
