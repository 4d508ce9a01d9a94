"""Schedules to compare packing with, and a schedule's costs besides imbalance.

S sequences, L layers, E experts, R EP ranks, M rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Plan, Schedule
from relibra.planning.packing.length_balance import length_balanced


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleScore:
    """The costs of a schedule under the plan made for it."""

    imbalance: float
    """The planned imbalance, with replicas."""
    cross_node_share: float
    """The part of the token copies whose expert has its home on another node than their source rank."""
    largest_tokens: int
    """The tokens of the fullest source rank in a micro-batch: the token budget that the schedule needs."""
    attention_spread: float
    """Slowest source rank over mean source rank, in squared lengths, summed over micro-batches; 1.0 is ideal."""


def comparison_schedules(
    length_S: NDArray[np.int64], num_micro_batches: int, cluster: Cluster, token_budget: int
) -> dict[str, Schedule]:
    """Return the schedules that frameworks make: `round_robin` ignores the budget, `length_balanced` keeps it.

    Raises:
        InvalidInput: in the cases of `length_balanced`.
    """
    return {
        "round_robin": Schedule.round_robin(len(length_S), num_micro_batches, cluster),
        "length_balanced": length_balanced(length_S, num_micro_batches, cluster, token_budget),
    }


def score_schedule(plan: Plan, counts_SLE: NDArray[np.integer], length_S: NDArray[np.int64]) -> ScheduleScore:
    """Score the schedule of a plan, given its sequences' token copies `[S, L, E]` and tokens."""
    schedule, cluster = plan.schedule, plan.cluster
    home_node_LE = plan.home_rank_LE // cluster.gpus_per_node
    source_node_S = schedule.source_rank_S // cluster.gpus_per_node
    num_local = sum(
        int(counts_LE[home_node_LE == node].sum()) for counts_LE, node in zip(counts_SLE, source_node_S, strict=True)
    )
    work_MR = _sum_by_rank(schedule, length_S**2, cluster)
    total_work = int(work_MR.sum())
    return ScheduleScore(
        imbalance=plan.prediction.imbalance_after,
        cross_node_share=1 - num_local / max(int(counts_SLE.sum(dtype=np.int64)), 1),
        largest_tokens=largest_tokens(schedule, length_S, cluster),
        attention_spread=int(work_MR.max(axis=1).sum()) * cluster.num_ranks / total_work if total_work else 1.0,
    )


def largest_tokens(schedule: Schedule, length_S: NDArray[np.int64], cluster: Cluster) -> int:
    """Return the tokens of the fullest source rank in a micro-batch."""
    return int(_sum_by_rank(schedule, length_S, cluster).max())


def _sum_by_rank(schedule: Schedule, number_S: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    sum_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks), dtype=np.int64)
    np.add.at(sum_MR, (schedule.row_S, schedule.source_rank_S), number_S)
    return sum_MR
