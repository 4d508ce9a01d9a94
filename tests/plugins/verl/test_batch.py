import numpy as np
import pytest

from harness.engine_payloads import routes
from harness.framework_batches import LAYERS, check_rows, sequence_rows, verl_data
from relibra.errors import InvalidInput
from relibra.plugins.verl.batch import rank_batch

INDICES = [[2], [0, 3, 1]]


@pytest.mark.parametrize("mode", ["R3", "R2"])
def test_the_rows_that_verl_replays_are_reported(mode: str) -> None:
    is_recorded = mode == "R2"
    rows = [np.concatenate([each, routes(99, 1, LAYERS)]) if is_recorded else each for each in sequence_rows(0)]
    batch = rank_batch(verl_data(0, is_recorded=is_recorded), [None] * 2, INDICES, LAYERS, mode)
    check_rows(batch, [[rows[each] for each in samples] for samples in INDICES])


def test_without_dynamic_batches_micro_batches_are_runs_of_equal_size() -> None:
    assert rank_batch(verl_data(0), [None] * 2, None, LAYERS).micro_batches == [[0, 1], [2, 3]]


def test_tokens_behind_the_last_generation_have_no_rows() -> None:
    data = verl_data(0)
    data["routed_experts"].values()[8:12] = 0  # the sequence has 12 rows for 13 tokens
    routing = rank_batch(data, [None], [[0, 1, 2, 3]], LAYERS).routings[0]
    assert routing.num_missing == 5
    np.testing.assert_array_equal(routing.routed_TLK, sequence_rows(0)[0][:8])


def test_recorded_routing_needs_a_row_for_every_token() -> None:
    with pytest.raises(InvalidInput, match=r"routed_experts\[0\]: expected a row for each of 13 tokens, got 12"):
        rank_batch(verl_data(0), [None] * 2, None, LAYERS, mode="R2")
