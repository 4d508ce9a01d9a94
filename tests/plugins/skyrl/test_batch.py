import pytest

from harness.framework_batches import LAYERS, check_rows, sequence_rows, skyrl_batches
from relibra.errors import InvalidInput
from relibra.plugins.skyrl.batch import rank_batch


def test_the_rows_of_the_rollout_are_reported() -> None:
    rows = sequence_rows(0)
    check_rows(rank_batch(skyrl_batches(0), LAYERS), [rows[:2], rows[2:]])


def test_routes_that_do_not_fit_the_tokens_are_refused() -> None:
    batches = skyrl_batches(0)
    batches[1]["attention_mask"][0, -1] = 0
    with pytest.raises(InvalidInput, match=r"cu_seqlens: expected segments of \[21, 5\] rows.*\[22, 5\]"):
        rank_batch(batches, LAYERS)
