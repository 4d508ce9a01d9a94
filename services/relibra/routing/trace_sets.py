"""Traces merged, and split into some of their sequences."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.trace import RoutingTrace

_PER_SEQUENCE = ("domain", "micro_batch", "source_rank", "ep_group")


def merge_traces(traces: Sequence[RoutingTrace], *, of_one_step: bool = False) -> RoutingTrace:
    """Return one trace with the sequences of all traces.

    The result has domains if every trace has them, and a schedule if every trace has one.

    Args:
        traces: the traces, all of one model.
        of_one_step: whether each trace is that of a rank and all ranks run at the same time, so that micro-batches keep
            their numbers. By default, the traces follow one another: micro-batches of a later trace get the numbers
            after those of the earlier ones.

    Raises:
        InvalidInput: there are no traces, or they belong to different models.
    """
    if not traces:
        raise InvalidInput.of("traces", expected="at least one", got="none")
    shapes = [(trace.num_layers, trace.top_k, trace.num_experts) for trace in traces]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InvalidInput.of(
                f"traces[{index}]",
                expected="the layers, top-k and experts of the first trace, {}, {}, {}".format(*shapes[0]),
                got=shape,
            )
    lengths = np.concatenate([np.diff(trace.offsets) for trace in traces])
    optional: dict[str, Any] = {
        key: np.concatenate([getattr(trace, key) for trace in traces])
        for key in ("domain", "micro_batch", "source_rank")
        if all(getattr(trace, key) is not None for trace in traces)
    }
    if "micro_batch" in optional and any(trace.ep_group is not None for trace in traces):
        # A schedule without EP groups has the group 0, also beside one with others.
        schedules = [trace.schedule for trace in traces]
        optional["ep_group"] = np.concatenate([schedule.ep_group_S for schedule in schedules if schedule is not None])
    if "micro_batch" in optional and not of_one_step:
        first_of = np.cumsum(
            [0, *(int(trace.micro_batch.max()) + 1 for trace in traces if trace.micro_batch is not None)]
        )
        added = np.repeat(first_of[:-1], [trace.num_sequences for trace in traces])
        optional["micro_batch"] = (optional["micro_batch"] + added).astype(np.int32)
    return RoutingTrace(
        routed_experts=np.concatenate([trace.routed_experts for trace in traces]),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        num_experts=traces[0].num_experts,
        **optional,
    )


def take_sequences(trace: RoutingTrace, sequences: NDArray[np.integer]) -> RoutingTrace:
    """Return a trace of some sequences, in the order given. A fixed schedule keeps its micro-batch numbers.

    Raises:
        InvalidTrace: no sequences are given.
    """
    spans = [(int(trace.offsets[sequence]), int(trace.offsets[sequence + 1])) for sequence in sequences]
    return RoutingTrace(
        routed_experts=np.concatenate([trace.routed_experts[:0], *(trace.routed_experts[a:b] for a, b in spans)]),
        offsets=np.cumsum([0, *(end - start for start, end in spans)], dtype=np.int64),
        num_experts=trace.num_experts,
        **{key: getattr(trace, key)[sequences] for key in _PER_SEQUENCE if getattr(trace, key) is not None},
    )


def split_by_domain(trace: RoutingTrace) -> dict[str, RoutingTrace]:
    """Return a trace for each domain, by the domain's name.

    Raises:
        InvalidInput: the trace has no domains.
    """
    if trace.domain is None:
        raise InvalidInput.of("domain", expected="a domain for every sequence", got="no such key")
    return {str(name): take_sequences(trace, np.flatnonzero(trace.domain == name)) for name in np.unique(trace.domain)}


def split_in_parts(trace: RoutingTrace, num_parts: int) -> list[RoutingTrace]:
    """Return traces of consecutive sequences, with numbers of sequences that differ by one at most.

    Raises:
        InvalidInput: `num_parts` is less than one or more than the sequences.
    """
    if not 1 <= num_parts <= trace.num_sequences:
        raise InvalidInput.of("parts", expected=f"1 to the {trace.num_sequences} sequences", got=num_parts)
    bounds = np.arange(num_parts + 1) * trace.num_sequences // num_parts
    return [take_sequences(trace, np.arange(first, end)) for first, end in pairwise(bounds)]
