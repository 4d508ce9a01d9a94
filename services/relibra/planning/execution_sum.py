"""What the ranks of a step did, summed up from their reports.

M micro-batches, L layers, R EP ranks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from relibra.planning.execution import Cause, ExecutionReport, Phase
from relibra.planning.job import Cluster
from relibra.planning.load import imbalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One phase of a step, over all EP groups."""

    phase: Phase
    num_expected: int
    """Ranks of all EP groups."""
    num_ep_groups: int
    missing: tuple[tuple[int, int], ...]
    """(EP group, rank) of those that did not report, in order."""
    num_applied: int
    fallbacks: dict[Cause, int]
    """The number of ranks for which each cause applies; a rank with two causes counts under both."""
    reasons: tuple[str, ...]
    """What the ranks that fell back say, each text once; the first of them."""
    imbalance: float | None
    """Realised; None unless all ranks have reported."""
    rank_tokens: tuple[int | None, ...]
    """Of every EP rank, summed over groups, micro-batches and layers; None where one did not report."""
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    """Of the rank that waited longest."""
    reorder_s: float = 0.0
    """Of the rank for which it took longest."""
    replica_wait_s: float = 0.0
    """Of the rank that waited longest."""

    @property
    def num_reports(self) -> int:
        """Ranks that have reported."""
        return self.num_expected - len(self.missing)

    @property
    def num_fallbacks(self) -> int:
        """Ranks that kept the previous placement."""
        return self.num_reports - self.num_applied


_MAX_REASONS = 3


def executions(reports: Sequence[ExecutionReport], cluster: Cluster) -> list[Execution]:
    """Sum up the reports of one step, by phase in the order they happen; a phase without reports is left out."""
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
