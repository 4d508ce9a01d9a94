import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Schedule
from relibra.planning.packing.length_balance import length_balanced

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)


def _tokens_MR(schedule, length_S, cluster):
    tokens_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks), dtype=np.int64)
    np.add.at(tokens_MR, (schedule.row_S, schedule.source_rank_S), length_S)
    return tokens_MR


@given(
    lengths=st.lists(st.integers(0, 500), min_size=1, max_size=60),
    num_micro_batches=st.integers(1, 6),
    num_ep_groups=st.integers(1, 2),
    room=st.floats(1.0, 4.0),
)
@settings(max_examples=150, deadline=None)
def test_the_budget_holds_or_the_refusal_says_what_to_do(lengths, num_micro_batches, num_ep_groups, room):
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=num_ep_groups)
    length_S = np.array(lengths)
    num_cells = num_micro_batches * num_ep_groups * 4
    budget = max(int(length_S.max()), int(room * length_S.sum() / num_cells))
    try:
        schedule = length_balanced(length_S, num_micro_batches, cluster, budget)
    except InvalidInput as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "do not fit: raise it, or plan more micro-batches" in refusal
        # A sequence that fits on no rank finds every rank more than half full, or is longer than half the budget.
        assert length_S.sum() > num_cells * budget / 2
        return
    assert schedule.num_sequences == len(lengths)
    assert schedule.num_micro_batches == num_micro_batches
    schedule.check(cluster)
    assert _tokens_MR(schedule, length_S, cluster).max() <= budget


def test_equal_lengths_fill_micro_batches_nodes_and_ranks_alike():
    schedule = length_balanced(np.full(24, 7), 3, _CLUSTER, 14)
    np.testing.assert_array_equal(_tokens_MR(schedule, np.full(24, 7), _CLUSTER), np.full((3, 4), 14))
    half = length_balanced(np.full(6, 7), 3, _CLUSTER, 14)
    by_node_MN = _tokens_MR(half, np.full(6, 7), _CLUSTER).reshape(3, 2, 2).sum(axis=-1)
    np.testing.assert_array_equal(by_node_MN, np.full((3, 2), 7))


def test_long_and_short_sequences_share_a_rank_as_differencing_finds():
    one_rank_a_row = Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=0)
    length_S = np.array([8, 7, 6, 5, 4])
    schedule = length_balanced(length_S, 2, one_rank_a_row, 30)
    assert sorted(np.bincount(schedule.micro_batch_S, weights=length_S)) == [14, 16]


def test_real_lengths_are_far_more_even_than_round_robin():
    length_S = np.random.default_rng(0).lognormal(6, 0.8, 512).astype(np.int64)
    round_robin = _tokens_MR(Schedule.round_robin(512, 8, _CLUSTER), length_S, _CLUSTER)
    balanced = _tokens_MR(length_balanced(length_S, 8, _CLUSTER, int(round_robin.max())), length_S, _CLUSTER)
    assert balanced.max() <= 1.01 * balanced.mean() < 1.2 * balanced.mean() < round_robin.max()
    rows = balanced.sum(axis=1)
    assert rows.max() <= 1.001 * rows.mean()


def test_a_tight_budget_is_met_by_filling_ranks_up():
    one_rank_a_row = Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=0)
    length_S = np.array([6, 6, 4, 4, 4, 3, 3])
    schedule = length_balanced(length_S, 3, one_rank_a_row, 10)
    assert sorted(np.bincount(schedule.micro_batch_S, weights=length_S)) == [10, 10, 10]


def test_a_sequence_longer_than_the_budget_is_refused_by_name():
    with pytest.raises(InvalidInput, match="token_budget: expected at least the 900 tokens of sequence 2, got 512"):
        length_balanced(np.array([10, 20, 900]), 2, _CLUSTER, 512)


def test_too_many_tokens_for_the_budget_are_refused():
    with pytest.raises(InvalidInput, match="room for 90 tokens on 4 ranks in 2 micro-batches, got 10, and 1 sequences"):
        length_balanced(np.full(9, 10), 2, _CLUSTER, 10)


def test_no_micro_batches_are_refused():
    with pytest.raises(InvalidInput, match="micro_batches: expected at least 1, got 0"):
        length_balanced(np.array([1]), 0, _CLUSTER, 1)
