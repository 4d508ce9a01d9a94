"""Traces merged and split, by sequences."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.trace import RoutingTrace

_PER_SEQUENCE = ("domain", "micro_batch", "source_rank", "ep_group")


def merge_traces(traces: Sequence[RoutingTrace]) -> RoutingTrace:
    """Return one trace of the sequences of all.

    Domains and schedules stay where every trace has them; micro-batches of later traces are numbered on.

    Raises:
        InvalidInput: no traces, or of different models.
    """
    if not traces:
        raise InvalidInput.of("traces", expected="at least one", got="none")
    shapes = [(each.num_layers, each.top_k, each.num_experts) for each in traces]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InvalidInput.of(
                f"traces[{index}]",
                expected="layers, top-k and experts of the first, {}, {}, {}".format(*shapes[0]),
                got=shape,
            )
    lengths = np.concatenate([np.diff(each.offsets) for each in traces])
    optional: dict[str, Any] = {
        key: np.concatenate([getattr(each, key) for each in traces])
        for key in _PER_SEQUENCE
        if all(getattr(each, key) is not None for each in traces)
    }
    if "micro_batch" in optional:
        first_of = np.cumsum([0, *(int(each.micro_batch.max()) + 1 for each in traces if each.micro_batch is not None)])
        added = np.repeat(first_of[:-1], [each.num_sequences for each in traces])
        optional["micro_batch"] = (optional["micro_batch"] + added).astype(np.int32)
    return RoutingTrace(
        routed_experts=np.concatenate([each.routed_experts for each in traces]),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        num_experts=traces[0].num_experts,
        **optional,
    )


def take_sequences(trace: RoutingTrace, sequences: NDArray[np.integer]) -> RoutingTrace:
    """Return the trace of some sequences, in the order given; a fixed schedule keeps its micro-batches.

    Raises:
        InvalidTrace: none are given.
    """
    spans = [(int(trace.offsets[each]), int(trace.offsets[each + 1])) for each in sequences]
    return RoutingTrace(
        routed_experts=np.concatenate([trace.routed_experts[:0], *(trace.routed_experts[a:b] for a, b in spans)]),
        offsets=np.cumsum([0, *(end - start for start, end in spans)], dtype=np.int64),
        num_experts=trace.num_experts,
        **{key: getattr(trace, key)[sequences] for key in _PER_SEQUENCE if getattr(trace, key) is not None},
    )


def split_by_domain(trace: RoutingTrace) -> dict[str, RoutingTrace]:
    """Return a trace for every domain, by name.

    Raises:
        InvalidInput: the trace has no domains.
    """
    if trace.domain is None:
        raise InvalidInput.of("domain", expected="a domain for every sequence", got="no such key")
    return {str(name): take_sequences(trace, np.flatnonzero(trace.domain == name)) for name in np.unique(trace.domain)}


def split_in_parts(trace: RoutingTrace, num_parts: int) -> list[RoutingTrace]:
    """Return traces of consecutive sequences, as many of each as whole numbers allow.

    Raises:
        InvalidInput: fewer than one part, or more than sequences.
    """
    if not 1 <= num_parts <= trace.num_sequences:
        raise InvalidInput.of("parts", expected=f"1 to the {trace.num_sequences} sequences", got=num_parts)
    bounds = np.arange(num_parts + 1) * trace.num_sequences // num_parts
    return [take_sequences(trace, np.arange(first, end)) for first, end in pairwise(bounds)]
