import dataclasses

import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.routing import RoutingTrace, count_sequences
from relibra.routing.trace_sets import merge_traces, split_by_domain, split_in_parts, take_sequences


def _trace(seed=0, *, num_experts=8, scheduled=True, domain=("math", "code", "math", "chat", "code")):
    rng = np.random.default_rng(seed)
    schedule = {key: rng.integers(0, 4, 5).astype(np.int32) for key in ("micro_batch", "source_rank", "ep_group")}
    return RoutingTrace(
        routed_experts=rng.integers(0, 8, (50, 3, 4)).astype(np.uint8),
        offsets=np.array([0, 10, 10, 25, 30, 50]),
        num_experts=num_experts,
        domain=None if domain is None else np.array(domain),
        **(schedule if scheduled else {}),
    )


def test_parts_merged_are_the_trace_again():
    trace = _trace(scheduled=False)
    for num_parts in (1, 2, 5):
        parts = split_in_parts(trace, num_parts)
        assert len(parts) == num_parts
        whole = merge_traces(parts)
        for field in ("routed_experts", "offsets", "domain"):
            np.testing.assert_array_equal(getattr(whole, field), getattr(trace, field))
    with pytest.raises(InvalidInput, match="parts: expected 1 to the 5 sequences, got 6"):
        split_in_parts(trace, 6)


def test_domains_keep_their_sequences_and_schedule():
    trace = _trace()
    pieces = split_by_domain(trace)
    assert {name: each.num_sequences for name, each in pieces.items()} == {"chat": 1, "code": 2, "math": 2}
    np.testing.assert_array_equal(count_sequences(pieces["code"]), count_sequences(trace)[[1, 4]])
    np.testing.assert_array_equal(pieces["code"].source_rank, trace.source_rank[[1, 4]])
    with pytest.raises(InvalidInput, match="domain: expected a domain for every sequence"):
        split_by_domain(_trace(domain=None))


def test_merged_schedules_number_micro_batches_on():
    first, second = _trace(0), _trace(1)
    whole = merge_traces([first, second])
    added = int(first.micro_batch.max()) + 1
    np.testing.assert_array_equal(whole.micro_batch, [*first.micro_batch, *(second.micro_batch + added)])
    np.testing.assert_array_equal(count_sequences(whole)[5:], count_sequences(second))
    assert merge_traces([first, _trace(1, scheduled=False)]).schedule is None


def test_a_schedule_without_groups_keeps_the_groups_of_another():
    grouped, alone = _trace(0), dataclasses.replace(_trace(1), ep_group=None)
    np.testing.assert_array_equal(merge_traces([alone, grouped]).ep_group, [0, 0, 0, 0, 0, *grouped.ep_group])
    assert merge_traces([alone, alone]).ep_group is None
    assert merge_traces([grouped, _trace(1, scheduled=False)]).ep_group is None


def test_micro_batches_of_ranks_of_one_step_keep_their_numbers():
    first, second = _trace(0), _trace(1)
    whole = merge_traces([first, second], of_one_step=True)
    for field in ("micro_batch", "source_rank", "ep_group"):
        np.testing.assert_array_equal(getattr(whole, field), [*getattr(first, field), *getattr(second, field)])


def test_traces_of_other_models_are_refused():
    with pytest.raises(
        InvalidInput, match=r"traces\[1\]: expected the layers, top-k and experts of the first trace, 3, 4, 8"
    ):
        merge_traces([_trace(), _trace(num_experts=9)])
    with pytest.raises(InvalidInput, match="traces: expected at least one"):
        merge_traces([])
    with pytest.raises(InvalidInput, match="offsets: expected int64"):
        take_sequences(_trace(), np.array([], dtype=np.int64))
