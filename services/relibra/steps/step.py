"""A step on its way to the planner: data-parallel ranks report their parts, one process submits the schedule of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relibra.errors import InvalidInput
from relibra.planning import Schedule
from relibra.planning.plan import Basis
from relibra.rollout import RolloutReporter
from relibra.steps.rank_batch import RankBatch, TrainerLayout
from relibra.steps.rank_parts import count_rank
from relibra.wire.client import PlannerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """The sequence ids and the schedule that one data-parallel rank reported; small enough to gather from all ranks."""

    sequence_ids: tuple[str, ...]
    schedule: Schedule


def report_rank(
    reporter: RolloutReporter,
    step: int,
    batch: RankBatch,
    data_rank: int,
    trainer: TrainerLayout,
    *,
    timeout_s: float = 60.0,
) -> RankSchedule:
    """Report the batch of a data-parallel rank; return its schedule once the planner has stored everything.

    Args:
        reporter: the job's reporter; everything in its buffer is flushed too.
        step: the number of the optimizer step; a phase with other micro-batches is a step of its own.
        batch: the batch that the rank trains on.
        data_rank: the data-parallel rank.
        trainer: how the trainer assigns tokens to ranks.
        timeout_s: how long to wait until the planner has stored everything.

    Raises:
        InvalidInput: see `count_rank`; nothing is reported.
        LimitExceeded: the counts of one part do not fit the reporter's buffer.
        Unavailable: the planner does not answer. Report again; the planner stores each part only once.
        RelibraError: the planner refused a part, or an earlier report of which nobody has heard; see
            `RolloutReporter.flush`.
    """
    parts = count_rank(batch, data_rank, trainer)
    sequence_ids = tuple(f"rank-{data_rank}/part-{index}" for index in range(len(parts)))
    for sequence_id, part in zip(sequence_ids, parts, strict=True):
        reporter.report_counts(step, sequence_id, part.counts.counts_LE, part.counts.num_rows)
    reporter.flush(timeout_s)
    place_P3 = np.array([(part.micro_batch, part.source_rank, part.ep_group) for part in parts], dtype=np.int32)
    micro_batch_P, source_rank_P, ep_group_P = place_P3.reshape(-1, 3).T
    schedule = Schedule(micro_batch_S=micro_batch_P, source_rank_S=source_rank_P, ep_group_S=ep_group_P)
    return RankSchedule(sequence_ids=sequence_ids, schedule=schedule)


def submit_step(
    planner: PlannerClient, job_id: str, step: int, ranks: Sequence[RankSchedule], basis: Basis = Basis.REPLAY
) -> None:
    """Submit the schedule of a step, combined from the reports of its data-parallel ranks; the plan follows.

    Pass `Basis.ROLLOUT` if the trainer does not replay the reported routing.

    Raises:
        InvalidInput: there are no ranks, or a rank occurs twice; see also `PlannerClient.submit_schedule`.
    """
    if not ranks:
        raise InvalidInput.of("ranks", expected="the schedule of at least one data-parallel rank", got="none")
    micro_batch_S, source_rank_S, ep_group_S = (
        np.concatenate([getattr(rank.schedule, field) for rank in ranks])
        for field in ("micro_batch_S", "source_rank_S", "ep_group_S")
    )
    planner.submit_schedule(
        job_id,
        step,
        [sequence_id for rank in ranks for sequence_id in rank.sequence_ids],
        Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S),
        basis,
    )
