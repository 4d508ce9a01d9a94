"""The packing freedom of a framework's driver, handed to the planner: which micro-batch and rank a sequence gets.

A driver deals the sequences of an optimizer step to data-parallel ranks before training starts. It has their routed
experts then, and no gradient depends on the deal. So it reports the routing, asks the planner for a better deal, and
checks that the framework can train on it.

Where context and tensor parallelism spread a sequence over several EP ranks, the planner knows it by the first of them.

S sequences, M micro-batches, T rows, X layers of a payload, L MoE layers, K top-k, E experts.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, Unsupported
from relibra.planning import Cluster, Freedom, Schedule
from relibra.rollout import RolloutReporter
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import sequence_routing
from relibra.steps.parallel_layout import ParallelLayout, check_dealt
from relibra.wire.client import PlannerClient

MAX_IDS = 30_000_000
"""The most expert ids that are counted for one step, about a second of a core. Longer steps are sampled."""
_MAX_THREADS = 8

Dealt = Sequence[Sequence[Sequence[int]]]
"""The sequences of every data-parallel rank and micro-batch, `[data][M][...]`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackableStep:
    """The sequences of an optimizer step as the framework would deal them, and what may change."""

    routed_S: Sequence[Any]
    """The routed experts of every sequence, `[T, X, K]`, numpy or torch, over all layers or MoE layers only."""
    length_S: Sequence[int]
    """The tokens of every sequence."""
    dealt: Dealt
    """The framework's own deal. Where ranks form micro-batches later, it has one micro-batch."""
    freedom: Freedom = Freedom.MICRO_BATCHES
    keeps_counts: bool = False
    """Whether every micro-batch of every rank must keep its number of sequences."""
    token_budget: int | None = None
    """The most tokens of a micro-batch of a rank; a longer sequence has a micro-batch for itself."""


def pack_step(
    planner: PlannerClient,
    reporter: RolloutReporter,
    job_id: str,
    step: int,
    name: str,
    packable: PackableStep,
    layers: ModelLayers,
    ranks: ParallelLayout,
    *,
    timeout_s: float,
) -> tuple[Dealt, str]:
    """Ask the planner for a better deal of the sequences of a step; return it, and why.

    Args:
        planner: a client of the job's attempt.
        reporter: a reporter of the same attempt; everything in its buffer is flushed too.
        job_id: the job.
        step: the step that the sequences will be trained in, or a later one. It has no schedule yet.
        name: a text that no other batch of the attempt has.
        packable: the sequences.
        layers: the layers of the model.
        ranks: the ranks of a pipeline stage, see `check_packable`.
        timeout_s: how long the planner may take in all. Counting comes before, and takes about a second.

    Raises:
        InvalidInput: routed experts are malformed, or the planner's deal is not one that the framework can train on.
        Unavailable: the planner took too long.
        RelibraError: the planner refused; see `RolloutReporter.flush` and `PlannerClient.pack`.
    """
    counted_S = _count(packable.routed_S, layers)
    deadline_s = time.monotonic() + timeout_s
    sequence_ids = [f"{name}/sequence-{index}" for index in range(len(counted_S))]
    for sequence_id, (counts_LE, num_rows) in zip(sequence_ids, counted_S, strict=True):
        left_s = max(0.0, deadline_s - time.monotonic())
        reporter.report_counts(step, sequence_id, counts_LE, num_rows, timeout_s=left_s)
    reporter.flush(max(0.0, deadline_s - time.monotonic()))
    length_S = np.array(packable.length_S, dtype=np.int64)
    if packable.token_budget is not None:
        # A sequence that is longer fills its micro-batch, so that no other joins it.
        length_S = np.minimum(length_S, packable.token_budget)
    schedule, reason = planner.pack(
        job_id,
        step,
        sequence_ids,
        length_S,
        as_schedule(packable.dealt, ranks),
        freedom=packable.freedom,
        keeps_counts=packable.keeps_counts,
        token_budget=packable.token_budget,
        timeout_s=max(0.001, deadline_s - time.monotonic()),
    )
    dealt = as_dealt(schedule, ranks, len(packable.dealt[0]))
    if fault := untrainable(dealt, packable):
        raise InvalidInput.of("packed schedule", expected="one that can be trained on", got=fault)
    return dealt, reason


def check_packable(ranks: ParallelLayout, cluster: Cluster) -> None:
    """Return if every data-parallel rank has EP ranks of its own, all on one node.

    Raises:
        Unsupported: it has not; then a sequence does not start on one node, and its experts' node means nothing.
    """
    size = ranks.context * ranks.tensor
    if size % ranks.expert_tensor:
        raise Unsupported(
            f"relibra does not pack where data-parallel ranks of {size} GPUs share expert-tensor groups of "
            f"{ranks.expert_tensor} GPUs: leave out pack, or lower the expert-tensor parallelism"
        )
    if cluster.num_nodes > 1 and cluster.gpus_per_node % (size // ranks.expert_tensor):
        raise Unsupported(
            f"relibra does not pack where a data-parallel rank of {size} GPUs is on several nodes of "
            f"{cluster.gpus_per_node} GPUs: leave out pack, or lower the context or tensor parallelism"
        )


def as_schedule(dealt: Dealt, ranks: ParallelLayout) -> Schedule:
    """Return a deal as the planner knows it; see `as_dealt` for the way back.

    Raises:
        InvalidInput: ranks have different numbers of micro-batches, or a sequence is missing or dealt twice.
    """
    num_sequences = sum(len(sequences) for of_rank in dealt for sequences in of_rank)
    check_dealt(dealt, num_sequences, ranks.data)
    micro_batch_S, ep_rank_S = np.empty((2, num_sequences), dtype=np.int32)
    for data_rank, of_rank in enumerate(dealt):
        for micro_batch, sequences in enumerate(of_rank):
            micro_batch_S[list(sequences)] = micro_batch
            ep_rank_S[list(sequences)] = data_rank * ranks.context * ranks.tensor // ranks.expert_tensor
    ep_group_S, source_rank_S = np.divmod(ep_rank_S, ranks.expert)
    return Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S)


def as_dealt(schedule: Schedule, ranks: ParallelLayout, num_micro_batches: int) -> list[list[list[int]]]:
    """Return a schedule as a deal to data-parallel ranks, `[data][M][...]`.

    Raises:
        InvalidInput: the schedule has more micro-batches, or a rank that the layout does not have.
    """
    if schedule.num_micro_batches > num_micro_batches:
        raise InvalidInput.of(
            "packed schedule", expected=f"{num_micro_batches} micro-batches", got=schedule.num_micro_batches
        )
    ep_rank_S = schedule.ep_group_S.astype(np.int64) * ranks.expert + schedule.source_rank_S
    data_rank_S = ep_rank_S * ranks.expert_tensor // (ranks.context * ranks.tensor)
    if data_rank_S.max() >= ranks.data:
        raise InvalidInput.of("packed schedule", expected=f"{ranks.data} data-parallel ranks", got=data_rank_S.max())
    dealt: list[list[list[int]]] = [[[] for _ in range(num_micro_batches)] for _ in range(ranks.data)]
    places = zip(data_rank_S.tolist(), schedule.micro_batch_S.tolist(), strict=True)
    for sequence, (data_rank, micro_batch) in enumerate(places):
        dealt[data_rank][micro_batch].append(sequence)
    return dealt


def untrainable(dealt: Dealt, packable: PackableStep) -> str:
    """Return why a framework cannot train on a deal instead of its own; an empty text if it can."""
    for data_rank, (of_rank, own) in enumerate(zip(dealt, packable.dealt, strict=True)):
        for micro_batch, (sequences, own_sequences) in enumerate(zip(of_rank, own, strict=True)):
            place = f"micro-batch {micro_batch} of data-parallel rank {data_rank}"
            if own_sequences and not sequences:
                return f"no sequence in {place}"
            if packable.keeps_counts and len(sequences) != len(own_sequences):
                return f"{len(sequences)} sequences in {place}, which has {len(own_sequences)}"
            num_tokens = sum(packable.length_S[sequence] for sequence in sequences)
            budget = packable.token_budget
            if budget is not None and num_tokens > budget and len(sequences) > 1:
                return f"{num_tokens} tokens in {place}, which holds {budget}"
    return ""


def _count(routed_S: Sequence[Any], layers: ModelLayers) -> list[tuple[NDArray[np.unsignedinteger], int]]:
    """Return the counts `[L, E]` and the rows of every sequence; of many rows only every n-th counts, n times."""
    every = sampling_interval([len(rows) for rows in routed_S], layers)

    def count(index: int) -> tuple[NDArray[np.unsignedinteger], int]:
        routing = sequence_routing(routed_S[index][::every], layers, field=f"routed_experts[{index}]")
        return routing.counts() * np.uint32(every), routing.num_rows * every

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(_MAX_THREADS, num_cores), thread_name_prefix="relibra-count") as pool:
        return list(pool.map(count, range(len(routed_S))))


def sampling_interval(num_rows_S: Sequence[int], layers: ModelLayers) -> int:
    """Return n, such that every n-th row of all sequences has about `MAX_IDS` expert ids at most."""
    return max(1, -(-sum(num_rows_S) * layers.num_moe_layers * layers.top_k // MAX_IDS))
