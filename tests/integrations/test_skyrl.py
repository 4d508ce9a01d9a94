import numpy as np
import pytest

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
from relibra.errors import InvalidInput
from relibra.integrations.skyrl import formed_rank_batch, rank_batch, trainer_layout


def rows_of(data_rank: int) -> list[np.ndarray]:
    return [with_last(each, first_experts(1)) for each in sequence_rows(data_rank)]


@pytest.mark.parametrize("is_packed", [True, False], ids=["0.4.0", "before"])
def test_what_is_planned_is_what_skyrl_replays(is_packed: bool) -> None:
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows = rows_of(data_rank)
        for index in range(2):
            replayed.add_packed(data_rank, index, rows[2 * index : 2 * index + 2], first_experts, sequence_multiple=8)
        batch = rank_batch(skyrl_batch(data_rank, is_packed=is_packed), LAYERS, 2)
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


def test_micro_batches_that_skyrl_has_formed_are_planned_as_they_are() -> None:
    # Two micro-batches, of one data rank's batch each; `tests/frameworks` hands over SkyRL's own.
    formed = [skyrl_batch(1), skyrl_batch(0)]
    batch = formed_rank_batch(formed, LAYERS)
    assert batch.micro_batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    lengths = [each.num_tokens for each in batch.routings]
    assert lengths == [int(length) for each in formed for length in each["attention_mask"].sum(dim=1)]


def test_routes_that_do_not_fit_the_tokens_are_refused() -> None:
    batch = skyrl_batch(0)
    batch["attention_mask"][2, -1] = 0
    with pytest.raises(InvalidInput, match=r"cu_seqlens: expected segments of \[13, 7, 21, 5\] rows.*\[13, 7, 22, 5\]"):
        rank_batch(batch, LAYERS, 2)
