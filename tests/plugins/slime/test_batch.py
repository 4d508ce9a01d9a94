from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.framework_batches import (
    LAYERS,
    LENGTHS,
    RANKS,
    Replayed,
    consecutive_ids,
    first_experts,
    sequence_rows,
    slime_rollout_data,
    trained_counts,
    with_last,
)
from relibra.errors import InvalidInput
from relibra.plugins.slime.batch import rank_batch, trainer_layout
from relibra.plugins.slime.framework import MILES


@pytest.mark.parametrize(("training_step", "micro_batches"), [(0, [[0, 2], [1]]), (1, [[3]])])
def test_what_is_planned_is_what_slime_replays(training_step: int, micro_batches: list[list[int]]) -> None:
    trainer = trainer_layout(RANKS, data_pad_size_multiplier=4)
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        # prepare_routed_experts_for_routing_replay adds the last token, splits by context rank, then pads the rank.
        rows = [with_last(each, consecutive_ids(1)) for each in sequence_rows(data_rank)]
        for index, samples in enumerate(micro_batches):
            replayed.add_packed(
                data_rank,
                index,
                [rows[each] for each in samples],
                consecutive_ids,
                sequence_multiple=4,
                rank_multiple=8,
            )
        batch = rank_batch(slime_rollout_data(data_rank), LAYERS, training_step)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_with_allgather_cp_the_ranks_share_the_rows_of_a_micro_batch_in_order() -> None:
    trainer = trainer_layout(RANKS, data_pad_size_multiplier=4, allgather_cp=True)
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows = [with_last(each, consecutive_ids(1)) for each in sequence_rows(data_rank)]
        for index, samples in enumerate([[0, 2], [1]]):
            # prepare_routed_experts_for_routing_replay pads the whole micro-batch, and then cuts it.
            stream = np.concatenate([rows[each] for each in samples])
            stream = np.concatenate([stream, consecutive_ids(-len(stream) % (RANKS.context * RANKS.tensor * 4))])
            for context, of_context in enumerate(np.split(stream, RANKS.context)):
                for tensor, part in enumerate(np.split(of_context, RANKS.tensor)):
                    replayed.add(data_rank, index, context, tensor, part)
        batch = rank_batch(slime_rollout_data(data_rank), LAYERS)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_a_training_step_has_its_own_samples_only() -> None:
    batch = rank_batch(slime_rollout_data(0), LAYERS, training_step=1)
    assert [each.num_tokens for each in batch.routings] == [LENGTHS[0][3]]
    with pytest.raises(InvalidInput, match="training_step: expected 0 to 1, got 2"):
        rank_batch(slime_rollout_data(0), LAYERS, training_step=2)


def test_a_sample_with_other_rows_than_tokens_is_refused_by_name() -> None:
    data = slime_rollout_data(0)
    data["rollout_routed_experts"][2] = data["rollout_routed_experts"][2][:-3]
    with pytest.raises(InvalidInput, match="no row for 3 tokens, the first is 0"):
        trained_counts(rank_batch(data, LAYERS), 0, trainer_layout(RANKS, 4))


def dealt(data_rank: int) -> tuple[dict[str, Any], list[int]]:
    """Return `rollout_data` without slime's deal, and the micro-batches of each training step."""
    data = slime_rollout_data(data_rank)
    return {key: data[key] for key in ("tokens", "rollout_routed_experts")}, data["num_microbatches"]


@pytest.mark.parametrize(("training_step", "micro_batches"), [(0, [[0, 2], [1]]), (1, [[3]])])
def test_what_is_planned_is_what_miles_replays(training_step: int, micro_batches: list[list[int]]) -> None:
    trainer = trainer_layout(RANKS, data_pad_size_multiplier=4, filler_rule=MILES.filler_rule)
    iterator = SimpleNamespace(micro_batch_indices=[[0, 2], [1], [3]], micro_batch_size=None)
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        # fill_replay_data pads with -1, and the replay sends such rows to the first experts.
        rows = [with_last(each, first_experts(1)) for each in sequence_rows(data_rank)]
        for index, samples in enumerate(micro_batches):
            replayed.add_packed(
                data_rank, index, [rows[each] for each in samples], first_experts, sequence_multiple=4, rank_multiple=8
            )
        data, num_micro_batches = dealt(data_rank)
        batch = MILES.batches(LAYERS, data, [iterator], num_micro_batches)(training_step)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_micro_batches_of_a_fixed_size_are_runs_of_samples() -> None:
    iterator = SimpleNamespace(micro_batch_indices=None, micro_batch_size=2)
    data, _ = dealt(0)
    batch = MILES.batches(LAYERS, data, [iterator], [1, 1])(1)
    whole = MILES.batches(LAYERS, data, [iterator], [2])(0)
    assert [each.num_tokens for each in batch.routings] == [each.num_tokens for each in whole.routings[2:]]
    assert whole.micro_batches == [[0, 1], [2, 3]]
