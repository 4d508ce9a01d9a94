import numpy as np
import pytest

from harness.framework_batches import LAYERS, RANKS, slime_rollout_data
from relibra.errors import InvalidInput
from relibra.plugins.slime.batch import rank_batch, trainer_layout
from relibra.routing import count_sequences
from relibra.steps.rank_batch import RankBatch
from relibra.steps.rank_parts import count_rank, rank_parts

TRAINER = trainer_layout(RANKS, data_pad_size_multiplier=4)


def test_a_rank_has_parts_on_its_own_ranks_only_sorted_by_micro_batch() -> None:
    for data_rank in range(2):
        trace = rank_parts(rank_batch(slime_rollout_data(data_rank), LAYERS), data_rank, TRAINER)
        assert set(trace.ep_group.tolist()) == {data_rank}
        assert set(trace.source_rank.tolist()) == {0, 1, 2, 3}
        assert (np.diff(trace.micro_batch) >= 0).all()


def test_a_micro_batch_that_only_other_ranks_have_keeps_its_number() -> None:
    batch = rank_batch(slime_rollout_data(0), LAYERS)
    late = RankBatch(routings=batch.routings, micro_batches=[[], [0, 1, 2]])
    assert set(rank_parts(late, 0, TRAINER).micro_batch.tolist()) == {1}


def test_a_rank_that_does_not_exist_and_a_sequence_dealt_twice_are_refused() -> None:
    batch = rank_batch(slime_rollout_data(0), LAYERS)
    with pytest.raises(InvalidInput, match="data_rank: expected 0 to 1, got 2"):
        rank_parts(batch, 2, TRAINER)
    with pytest.raises(InvalidInput, match="data_rank: expected 0 to 1, got 2"):
        count_rank(batch, 2, TRAINER)
    twice = RankBatch(routings=batch.routings, micro_batches=[[0, 1], [1, 2]])
    with pytest.raises(InvalidInput, match="micro_batches: expected each of sequences 0 to 2 once"):
        rank_parts(twice, 0, TRAINER)
    with pytest.raises(InvalidInput, match="micro_batches: expected each of sequences 0 to 2 once"):
        count_rank(twice, 0, TRAINER)


def test_counted_parts_are_the_sums_of_the_rows_of_a_rank() -> None:
    for data_rank in range(2):
        batch = rank_batch(slime_rollout_data(data_rank), LAYERS)
        trace = rank_parts(batch, data_rank, TRAINER)
        places = list(zip(trace.micro_batch, trace.ep_group, trace.source_rank, strict=True))
        parts = count_rank(batch, data_rank, TRAINER)
        assert [(each.micro_batch, each.ep_group, each.source_rank) for each in parts] == sorted(set(places))
        for part, place in zip(parts, sorted(set(places)), strict=True):
            mine_S = np.array([each == place for each in places])
            np.testing.assert_array_equal(part.counts.counts_LE, count_sequences(trace)[mine_S].sum(axis=0))
            assert part.counts.num_rows == np.diff(trace.offsets)[mine_S].sum()
