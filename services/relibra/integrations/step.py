"""A step on its way to the planner: data-parallel ranks report their parts, one process submits the schedule of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from relibra.errors import InvalidInput, LimitExceeded
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.integrations.rank_parts import rank_parts
from relibra.planning import Schedule
from relibra.planning.plan import Basis
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """The sequence ids and the schedule that one data-parallel rank reported; small enough to gather from all ranks."""

    sequence_ids: tuple[str, ...]
    schedule: Schedule


def report_rank(
    reporter: RolloutReporter, step: int, batch: RankBatch, data_rank: int, trainer: TrainerLayout
) -> RankSchedule:
    """Report the batch of a data-parallel rank; return its schedule once the planner has stored everything.

    Args:
        reporter: the job's reporter; everything in its buffer is flushed too.
        step: the number of the optimizer step; a phase with other micro-batches is a step of its own.
        batch: the batch that the rank trains on.
        data_rank: the data-parallel rank.
        trainer: how the trainer assigns tokens to ranks.

    Raises:
        InvalidInput: see `rank_parts`; nothing is reported.
        LimitExceeded: a micro-batch does not fit the reporter's buffer.
        Unavailable: the planner does not answer. Report again; the planner stores each part only once.
    """
    trace = rank_parts(batch, data_rank, trainer)
    schedule = trace.schedule
    assert schedule is not None
    sequence_ids = tuple(f"rank-{data_rank}/part-{part}" for part in range(trace.num_sequences))
    micro_batch = -1
    for part, (first, end) in enumerate(pairwise(trace.offsets)):
        if schedule.micro_batch_S[part] != micro_batch:
            micro_batch = int(schedule.micro_batch_S[part])
            reporter.flush()  # a step may be larger than the reporter's buffer
        if not reporter.report(step, sequence_ids[part], trace.routed_experts[first:end]):
            raise LimitExceeded(f"micro-batch {micro_batch} does not fit the reporter: raise its buffer_size_bytes")
    reporter.flush()
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
        np.concatenate([getattr(each.schedule, field) for each in ranks])
        for field in ("micro_batch_S", "source_rank_S", "ep_group_S")
    )
    planner.submit_schedule(
        job_id,
        step,
        [sequence_id for each in ranks for sequence_id in each.sequence_ids],
        Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S),
        basis,
    )
