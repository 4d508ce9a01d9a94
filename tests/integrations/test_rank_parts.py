import numpy as np
import pytest

from harness.framework_batches import LAYERS, RANKS, slime_rollout_data
from relibra.errors import InvalidInput
from relibra.integrations.rank_batch import RankBatch
from relibra.integrations.rank_parts import rank_parts
from relibra.integrations.slime import rank_batch, trainer_layout

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
    twice = RankBatch(routings=batch.routings, micro_batches=[[0, 1], [1, 2]])
    with pytest.raises(InvalidInput, match="micro_batches: expected each of sequences 0 to 2 once"):
        rank_parts(twice, 0, TRAINER)
