"""A step on its way to the planner: data-parallel ranks report their sequences, one process submits their schedule."""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from relibra.errors import InvalidInput, NotFound
from relibra.planning import Schedule
from relibra.rollout import RolloutReporter
from relibra.routing.sequence_routing import SequenceRouting
from relibra.steps.parallel_layout import check_dealt
from relibra.wire.client import PlannerClient

_MAX_THREADS = 8
"""Counting threads of one rank; the ranks of a machine count at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBatch:
    """The sequences of one data-parallel rank between two optimizer steps."""

    routings: Sequence[SequenceRouting | None]
    """The routing of every sequence, as far as it is known; None if rollout workers alone know it."""
    micro_batches: Sequence[Sequence[int]]
    """One list of places in `routings` per micro-batch, in order of training."""
    names: Sequence[str] = ()
    """What `name_sequence` returns for the tokens of every sequence, where rollout workers report them under these
    names as well; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSchedule:
    """The sequence ids and the schedule that one data-parallel rank reported; small enough to gather from all ranks."""

    sequence_ids: tuple[str, ...]
    schedule: Schedule


def report_rank(
    reporter: RolloutReporter,
    step: int,
    batch: RankBatch,
    name: str,
    *,
    ep_group: int,
    ep_rank: int,
    planner: PlannerClient | None = None,
    timeout_s: float = 60.0,
) -> RankSchedule:
    """Report the batch of a data-parallel rank; return its schedule once the planner has stored everything.

    Ranks split the tokens that really come, so padding, fillers, and how context and tensor parallelism cut sequences
    do not matter. `ep_rank` stands for all of these ranks. What rollout workers reported is not reported again.

    Args:
        reporter: the job's reporter; everything in its buffer is flushed too.
        step: the number of the optimizer step; a phase with other micro-batches is a step of its own.
        batch: the batch that the rank trains on.
        name: the name of the rank, which no other rank has.
        ep_group: the EP group of the rank.
        ep_rank: its rank in this group.
        planner: a client of the job's attempt, to ask for sequences that rollout workers reported under the names of
            the batch. Without it, the rank reports all of them.
        timeout_s: how long to wait until the planner has stored everything.

    Raises:
        InvalidInput: there is no sequence, or a sequence is missing from the micro-batches or listed twice.
        NotFound: the planner lacks a sequence whose routing this rank does not know.
        LimitExceeded: the counts of a sequence do not fit the reporter's buffer.
        Unavailable: the planner does not answer. Report again; the planner stores each sequence only once.
        RelibraError: the planner refused a sequence, or an earlier report of which nobody has heard; see
            `RolloutReporter.flush`.
    """
    routings = batch.routings
    if not routings:
        raise InvalidInput.of("routings", expected="at least one sequence", got="none")
    check_dealt([batch.micro_batches], len(routings), 1)
    sequence_ids = list(batch.names) or [""] * len(routings)
    unknown = list(range(len(routings)))
    if planner is not None and batch.names:
        unknown = planner.claim_sequences(reporter.job_id, step, sequence_ids)
    known = [routing for index in unknown if (routing := routings[index]) is not None]
    if len(known) < len(unknown):
        raise NotFound(f"the rollout did not report {len(unknown) - len(known)} of {len(routings)} sequences")
    for index in unknown:
        # A name of its own: of two samples with equal tokens, the routing may differ.
        sequence_ids[index] = f"{name}/sequence-{index}"
    if unknown:
        with ThreadPoolExecutor(_num_threads(len(unknown)), thread_name_prefix="relibra-count") as pool:
            counted = list(pool.map(SequenceRouting.counts, known))
        for index, counts_LE, routing in zip(unknown, counted, known, strict=True):
            reporter.report_counts(step, sequence_ids[index], counts_LE, routing.num_rows)
        reporter.flush(timeout_s)
    micro_batch_S = np.empty(len(routings), dtype=np.int32)
    for micro_batch, sequences in enumerate(batch.micro_batches):
        micro_batch_S[list(sequences)] = micro_batch
    schedule = Schedule(
        micro_batch_S=micro_batch_S,
        source_rank_S=np.full_like(micro_batch_S, ep_rank),
        ep_group_S=np.full_like(micro_batch_S, ep_group),
    )
    return RankSchedule(sequence_ids=tuple(sequence_ids), schedule=schedule)


def submit_step(
    planner: PlannerClient, job_id: str, step: int, ranks: Sequence[RankSchedule], *, is_forward_only: bool = False
) -> None:
    """Submit the schedule of a step, combined from the reports of its data-parallel ranks; the plan follows.

    Args:
        planner: the planner.
        job_id: the job.
        step: the step.
        ranks: what every data-parallel rank reported.
        is_forward_only: whether no backward follows.

    Raises:
        InvalidInput: there are no ranks, or a rank occurs twice; see also `PlannerClient.submit_schedule`.
    """
    if not ranks:
        raise InvalidInput.of("ranks", expected="the schedule of at least one data-parallel rank", got="none")
    seats = Counter((int(rank.schedule.ep_group_S[0]), int(rank.schedule.source_rank_S[0])) for rank in ranks)
    if (most := seats.most_common(1)[0])[1] > 1:
        (ep_group, ep_rank), number = most
        raise InvalidInput.of(
            "ranks", expected="every rank once", got=f"rank {ep_rank} of EP group {ep_group} {number} times"
        )
    micro_batch_S, source_rank_S, ep_group_S = (
        np.concatenate([getattr(rank.schedule, field) for rank in ranks])
        for field in ("micro_batch_S", "source_rank_S", "ep_group_S")
    )
    planner.submit_schedule(
        job_id,
        step,
        [sequence_id for rank in ranks for sequence_id in rank.sequence_ids],
        Schedule(
            micro_batch_S=micro_batch_S,
            source_rank_S=source_rank_S,
            ep_group_S=ep_group_S,
            is_forward_only=is_forward_only,
        ),
    )


def _num_threads(num_sequences: int) -> int:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MAX_THREADS, num_cores, num_sequences))
