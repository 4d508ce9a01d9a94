"""A step to the planner: every data-parallel rank reports its parts, one process submits the schedule of all."""

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
    """What one data-parallel rank has reported: small, and made to be gathered from all of them."""

    sequence_ids: tuple[str, ...]
    schedule: Schedule


def report_rank(
    reporter: RolloutReporter, step: int, batch: RankBatch, data_rank: int, trainer: TrainerLayout
) -> RankSchedule:
    """Report what a data-parallel rank trains on, and return where it starts from when all of it is durable.

    Args:
        reporter: of the job; what else it carries is flushed too.
        step: number of the optimizer step; phases with other micro-batches are steps of their own.
        batch: what the rank trains on.
        data_rank: its data-parallel rank.
        trainer: how it deals tokens out.

    Raises:
        InvalidInput: as `rank_parts`; nothing is reported.
        LimitExceeded: a micro-batch does not fit the reporter's buffer.
        Unavailable: the planner does not answer; report again, what is kept is kept once.
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
    """Submit the schedule of a step from what its data-parallel ranks reported; the plan follows.

    `basis` is `ROLLOUT` where the trainer routes anew what was reported.

    Raises:
        InvalidInput: no ranks, or one of them twice; else as `PlannerClient.submit_schedule`.
    """
    if not ranks:
        raise InvalidInput.of("ranks", expected="what at least one data-parallel rank reported", got="none")
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
