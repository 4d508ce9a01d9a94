"""What ranks did with a plan: the report of each rank, and their sum over a step.

A report is the realised counterpart of a plan's prediction.

M micro-batches of the rank's EP group, L layers, R EP ranks, C cells.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.load import imbalance
from relibra.planning.rank_plan import PlanId
from relibra.planning.routing_check import RoutingCheck

_MAX_REASONS = 3


class Phase(StrEnum):
    """The two passes of an RL step over the same tokens."""

    RECOMPUTE = "recompute"
    """Old log-probabilities: forward only."""
    UPDATE = "update"
    """Forward, backward, optimizer step."""


class Cause(StrEnum):
    """Why a rank kept the previous placement without replicas. Programs count and decide by these values."""

    LATE = "late"
    """A rank had no plan in time."""
    STALE = "stale"
    """A rank was offered a plan of an older epoch."""
    INVALID = "invalid"
    """A rank was offered a plan that breaks an invariant."""
    DISAGREED = "disagreed"
    """Ranks held different plans, or were at different steps."""
    UNDONE = "undone"
    """The reorder failed on some rank, and was undone on all."""
    OTHER_LAUNCH = "other_launch"
    """Another launch trains the job: the attempt of a rank is over, or was never admitted."""
    UNSPECIFIED = "unspecified"
    """The agent runs another version of relibra, and this one does not know the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReport:
    """One rank's report of one phase of one step."""

    step: int
    phase: Phase
    ep_group: int
    ep_rank: int
    applied: PlanId | None
    """None where the rank kept the previous placement without replicas."""
    reason: str
    """Why this plan or why none, for people. Programs read `causes`."""
    realised_load_ML: NDArray[np.int64]
    """Token copies this rank computed."""
    reorder_sent_bytes: int
    """Bytes that this rank sent in the reorder."""
    replica_sent_bytes: int
    """Bytes that this rank sent for replicas: weights and gradients."""
    plan_wait_s: float
    """How long this rank waited for the plan."""
    reorder_s: float = 0.0
    """How long the reorder took, from the first expert that left until all ranks had written theirs."""
    replica_wait_s: float = 0.0
    """How long the rank's host waited for replicas and their gradients: the part that computation did not hide."""
    causes: tuple[Cause, ...] = ()
    """All causes of the fallback, each once. Empty where a plan was applied, and from agents that send no causes."""
    routing: RoutingCheck = field(default_factory=RoutingCheck)
    """The routing of this rank's own tokens, compared with what the plan was made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the ranks of all EP groups did in one phase of a step."""

    phase: Phase
    num_expected: int
    """Ranks of all EP groups."""
    num_ep_groups: int
    missing: tuple[tuple[int, int], ...]
    """(EP group, rank) of every rank that did not report, in order."""
    num_applied: int
    """Ranks that applied the plan."""
    fallbacks: dict[Cause, int]
    """The number of ranks for which each cause applies; a rank with two causes counts under both."""
    reasons: tuple[str, ...]
    """The first few different reasons of the ranks that fell back."""
    imbalance: float | None
    """The realised imbalance; None until all ranks have reported, and where their loads differ in shape."""
    rank_tokens: tuple[int | None, ...]
    """Token copies of every EP rank, summed over groups, micro-batches and layers; None where a report is missing."""
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    """The wait of the rank that waited longest for its plan."""
    reorder_s: float = 0.0
    """The reorder of the rank for which it took longest."""
    replica_wait_s: float = 0.0
    """The wait of the rank that waited longest for replicas and their gradients."""
    routing: RoutingCheck = field(default_factory=RoutingCheck)
    """The routing of all ranks, compared with what the plan was made for. A cell counts once for every rank."""

    @property
    def num_reports(self) -> int:
        """Ranks that have reported."""
        return self.num_expected - len(self.missing)

    @property
    def num_fallbacks(self) -> int:
        """Ranks that kept the previous placement."""
        return self.num_reports - self.num_applied


def executions(reports: Sequence[ExecutionReport], cluster: Cluster) -> list[Execution]:
    """Sum up the reports of one step: one `Execution` per phase with reports, in the order in which phases happen."""
    by_phase = {phase: [each for each in reports if each.phase is phase] for phase in Phase}
    return [_sum_up(phase, of_phase, cluster) for phase, of_phase in by_phase.items() if of_phase]


def _sum_up(phase: Phase, reports: Sequence[ExecutionReport], cluster: Cluster) -> Execution:
    by_rank = {(each.ep_group, each.ep_rank): each for each in reports}
    everyone = [(group, rank) for group in range(cluster.num_ep_groups) for rank in range(cluster.num_ranks)]
    missing = tuple(each for each in everyone if each not in by_rank)
    fell_back = [each for each in by_rank.values() if each.applied is None]
    return Execution(
        phase=phase,
        num_expected=len(everyone),
        num_ep_groups=cluster.num_ep_groups,
        missing=missing,
        num_applied=len(by_rank) - len(fell_back),
        fallbacks=_by_cause(fell_back),
        reasons=tuple(dict.fromkeys(each.reason for each in fell_back))[:_MAX_REASONS],
        imbalance=None if missing else _realised(by_rank, cluster),
        rank_tokens=tuple(_tokens(by_rank, rank, cluster) for rank in range(cluster.num_ranks)),
        reorder_sent_bytes=sum(each.reorder_sent_bytes for each in by_rank.values()),
        replica_sent_bytes=sum(each.replica_sent_bytes for each in by_rank.values()),
        plan_wait_s=max(each.plan_wait_s for each in by_rank.values()),
        reorder_s=max(each.reorder_s for each in by_rank.values()),
        replica_wait_s=max(each.replica_wait_s for each in by_rank.values()),
        routing=RoutingCheck.total(each.routing for each in by_rank.values()),
    )


def _by_cause(fell_back: Sequence[ExecutionReport]) -> dict[Cause, int]:
    numbers = Counter(cause for each in fell_back for cause in each.causes or (Cause.UNSPECIFIED,))
    return {cause: numbers[cause] for cause in Cause if cause in numbers}


def _realised(by_rank: Mapping[tuple[int, int], ExecutionReport], cluster: Cluster) -> float | None:
    loads = [
        [by_rank[group, rank].realised_load_ML for rank in range(cluster.num_ranks)]
        for group in range(cluster.num_ep_groups)
    ]
    if any(each.shape != of_group[0].shape for of_group in loads for each in of_group):
        return None
    loads_CR = np.concatenate([np.stack(of_group, axis=-1).reshape(-1, cluster.num_ranks) for of_group in loads])
    return imbalance(loads_CR)


def _tokens(by_rank: Mapping[tuple[int, int], ExecutionReport], rank: int, cluster: Cluster) -> int | None:
    of_rank = [by_rank.get((group, rank)) for group in range(cluster.num_ep_groups)]
    found = [int(each.realised_load_ML.sum()) for each in of_rank if each is not None]
    return sum(found) if len(found) == len(of_rank) else None
