"""Traces of some sequences of a trace."""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.trace import RoutingTrace

_PER_SEQUENCE = ("domain", "micro_batch", "source_rank", "ep_group")


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
