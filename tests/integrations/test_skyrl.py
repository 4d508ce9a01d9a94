import numpy as np

from harness.framework_batches import (
    LAYERS,
    RANKS,
    Replayed,
    first_experts,
    sequence_rows,
    skyrl_batch,
    skyrl_token_batches,
    trained_counts,
    with_last,
)
from relibra.integrations.skyrl import rank_batch, trainer_layout


def rows_of(data_rank: int) -> list[np.ndarray]:
    return [with_last(each, first_experts(1)) for each in sequence_rows(data_rank)]


def test_what_is_planned_is_what_skyrl_replays() -> None:
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows = rows_of(data_rank)
        for index in range(2):
            replayed.add_packed(data_rank, index, rows[2 * index : 2 * index + 2], first_experts, sequence_multiple=8)
        batch = rank_batch(skyrl_batch(data_rank), LAYERS, 2)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer_layout(RANKS))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_dummies_that_make_token_batches_equal_are_load() -> None:
    replayed, planned_MRLE = Replayed(), 0
    for data_rank, micro_batches in enumerate([[[2, 0], [1, 3]], [[2, 0, 1, 3], []]]):
        rows = rows_of(data_rank)
        for index, samples in enumerate(micro_batches):
            # _pad_microbatch_to_size and _create_padding_microbatch add sequences of one token up to the largest size.
            dummies = [first_experts(1)] * (max(map(len, micro_batches)) - len(samples))
            replayed.add_packed(
                data_rank, index, [*(rows[each] for each in samples), *dummies], first_experts, sequence_multiple=8
            )
        batch = rank_batch(skyrl_batch(data_rank), LAYERS, skyrl_token_batches(data_rank))
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer_layout(RANKS))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)
