import pytest

from harness.framework_batches import LAYERS, RANKS, slime_rollout_data
from relibra.errors import InvalidInput
from relibra.plugins.slime.batch import rank_batch, trainer_layout
from relibra.steps.rank_batch import RankBatch
from relibra.steps.rank_parts import count_rank

TRAINER = trainer_layout(RANKS, data_pad_size_multiplier=4)


def test_a_rank_has_parts_on_its_own_ranks_only_sorted_by_micro_batch() -> None:
    for data_rank in range(2):
        parts = count_rank(rank_batch(slime_rollout_data(data_rank), LAYERS), data_rank, TRAINER)
        assert {part.ep_group for part in parts} == {data_rank}
        assert {part.source_rank for part in parts} == {0, 1, 2, 3}
        places = [(part.micro_batch, part.ep_group, part.source_rank) for part in parts]
        assert places == sorted(set(places))


def test_a_micro_batch_that_only_other_ranks_have_keeps_its_number() -> None:
    batch = rank_batch(slime_rollout_data(0), LAYERS)
    late = RankBatch(routings=batch.routings, micro_batches=[[], [0, 1, 2]])
    assert {part.micro_batch for part in count_rank(late, 0, TRAINER)} == {1}


def test_a_rank_that_does_not_exist_and_a_sequence_dealt_twice_are_refused() -> None:
    batch = rank_batch(slime_rollout_data(0), LAYERS)
    with pytest.raises(InvalidInput, match="data_rank: expected 0 to 1, got 2"):
        count_rank(batch, 2, TRAINER)
    twice = RankBatch(routings=batch.routings, micro_batches=[[0, 1], [1, 2]])
    with pytest.raises(InvalidInput, match="micro_batches: expected each of sequences 0 to 2 once"):
        count_rank(twice, 0, TRAINER)
