import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.routing import RoutingTrace, count_sequences
from relibra.routing.trace_sets import split_by_domain, take_sequences


def _trace(*, domain=("math", "code", "math", "chat", "code")):
    rng = np.random.default_rng(0)
    schedule = {key: rng.integers(0, 4, 5).astype(np.int32) for key in ("micro_batch", "source_rank", "ep_group")}
    return RoutingTrace(
        routed_experts=rng.integers(0, 8, (50, 3, 4)).astype(np.uint8),
        offsets=np.array([0, 10, 10, 25, 30, 50]),
        num_experts=8,
        domain=None if domain is None else np.array(domain),
        **schedule,
    )


def test_domains_keep_their_sequences_and_schedule():
    trace = _trace()
    pieces = split_by_domain(trace)
    assert {name: each.num_sequences for name, each in pieces.items()} == {"chat": 1, "code": 2, "math": 2}
    np.testing.assert_array_equal(count_sequences(pieces["code"]), count_sequences(trace)[[1, 4]])
    np.testing.assert_array_equal(pieces["code"].source_rank, trace.source_rank[[1, 4]])
    with pytest.raises(InvalidInput, match="domain: expected a domain for every sequence"):
        split_by_domain(_trace(domain=None))


def test_no_sequences_are_no_trace():
    with pytest.raises(InvalidInput, match="offsets: expected int64"):
        take_sequences(_trace(), np.array([], dtype=np.int64))
