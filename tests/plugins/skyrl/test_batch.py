import numpy as np
import pytest

from harness.framework_batches import (
    LAYERS,
    RANKS,
    Replayed,
    first_experts,
    sequence_rows,
    skyrl_batches,
    trained_counts,
    with_last,
)
from relibra.errors import InvalidInput
from relibra.plugins.skyrl.batch import rank_batch, trainer_layout


def rows_of(data_rank: int) -> list[np.ndarray]:
    return [with_last(each, first_experts(1)) for each in sequence_rows(data_rank)]


@pytest.mark.parametrize("is_packed", [True, False], ids=["0.4.0", "before"])
def test_what_is_planned_is_what_skyrl_replays(is_packed: bool) -> None:
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows = rows_of(data_rank)
        for index in range(2):
            replayed.add_packed(data_rank, index, rows[2 * index : 2 * index + 2], first_experts, sequence_multiple=8)
        batch = rank_batch(skyrl_batches(data_rank, is_packed=is_packed), LAYERS)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer_layout(RANKS))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_routes_that_do_not_fit_the_tokens_are_refused() -> None:
    batches = skyrl_batches(0)
    batches[1]["attention_mask"][0, -1] = 0
    with pytest.raises(InvalidInput, match=r"cu_seqlens: expected segments of \[21, 5\] rows.*\[22, 5\]"):
        rank_batch(batches, LAYERS)
