from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.framework_batches import (
    LAYERS,
    RANKS,
    Replayed,
    first_experts,
    sequence_rows,
    slime_rollout_data,
    trained_counts,
    with_last,
)
from relibra.integrations.miles import rank_batch, trainer_layout


def dealt(data_rank: int) -> tuple[dict[str, Any], list[int]]:
    """Return `rollout_data` without slime's deal, and the micro-batches of each training step."""
    data = slime_rollout_data(data_rank)
    return {key: data[key] for key in ("tokens", "rollout_routed_experts")}, data["num_microbatches"]


@pytest.mark.parametrize(("training_step", "micro_batches"), [(0, [[0, 2], [1]]), (1, [[3]])])
def test_what_is_planned_is_what_miles_replays(training_step: int, micro_batches: list[list[int]]) -> None:
    trainer = trainer_layout(RANKS, data_pad_size_multiplier=4)
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
        batch = rank_batch(data, iterator, num_micro_batches, LAYERS, training_step)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_micro_batches_of_a_fixed_size_are_runs_of_samples() -> None:
    iterator = SimpleNamespace(micro_batch_indices=None, micro_batch_size=2)
    data, _ = dealt(0)
    batch = rank_batch(data, iterator, [1, 1], LAYERS, training_step=1)
    whole = rank_batch(data, iterator, [2], LAYERS)
    assert [each.num_tokens for each in batch.routings] == [each.num_tokens for each in whole.routings[2:]]
    assert whole.micro_batches == [[0, 1], [2, 3]]
