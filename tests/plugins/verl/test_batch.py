import numpy as np
import pytest
import torch

from harness.engine_payloads import routes
from harness.framework_batches import (
    LAYERS,
    RANKS,
    Replayed,
    native,
    sequence_rows,
    trained_counts,
    verl_data,
    with_last,
)
from relibra.errors import InvalidInput
from relibra.plugins.verl.batch import rank_batch, trainer_layout
from relibra.routing import as_trained

INDICES = ([[2], [0, 3, 1]], [[1, 0], [3, 2]])


@pytest.mark.parametrize("mode", ["R3", "R2"])
def test_what_is_planned_is_what_verl_replays(mode: str) -> None:
    replayed, planned_MRLE = Replayed(), 0
    for data_rank, indices in enumerate(INDICES):
        last = native(1) if mode == "R3" else routes(99, 1, LAYERS)
        rows = [with_last(each, last) for each in sequence_rows(data_rank)]

        def fill(num_rows: int) -> np.ndarray:  # preprocess_thd_engine pads with zeros; R3 masks them
            return native(num_rows) if mode == "R3" else np.zeros((num_rows, 2, 2), int)

        for index, samples in enumerate(indices):
            replayed.add_packed(data_rank, index, [rows[each] for each in samples], fill, sequence_multiple=8)
        batch = rank_batch(verl_data(data_rank, is_recorded=mode == "R2"), [None] * 2, indices, LAYERS, mode)
        planned_MRLE = planned_MRLE + trained_counts(batch, data_rank, trainer_layout(RANKS, mode))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_without_dynamic_batches_micro_batches_are_runs_of_equal_size() -> None:
    assert rank_batch(verl_data(0), [None] * 2, None, LAYERS).micro_batches == [[0, 1], [2, 3]]


def test_tokens_behind_the_last_generation_go_to_expert_zero() -> None:
    data = verl_data(0)
    data["routed_experts"].values()[8:12] = 0  # the sequence has 12 rows for 13 tokens
    routing = rank_batch(data, [None], [[0, 1, 2, 3]], LAYERS).routings[0]
    assert routing.num_missing == 1
    rows = as_trained(routing, trainer_layout(RANKS).filler_rule)
    np.testing.assert_array_equal(rows.position_T, np.arange(12))
    assert not rows.routed_TLK[8:].any()


def test_a_sample_without_response_tokens_replays_nothing() -> None:
    data = verl_data(0)
    data["response_mask"] = torch.ones((4, 3), dtype=torch.int64)
    data["response_mask"][2] = 0
    routings = rank_batch(data, [None], [[0, 1, 2, 3]], LAYERS).routings
    assert [routing.num_missing for routing in routings] == [1, 1, routings[2].num_tokens, 1]
    rows = as_trained(routings[2], trainer_layout(RANKS).filler_rule)
    assert rows.num_rows == 0
    data["response_mask"] = data["response_mask"][:3]
    with pytest.raises(InvalidInput, match="response_mask: expected 4 samples, got 3"):
        rank_batch(data, [None], [[0, 1, 2, 3]], LAYERS)


def test_nothing_is_planned_where_nothing_is_replayed() -> None:
    with pytest.raises(InvalidInput, match=r"router_replay\.mode: expected R3 or R2, got disabled"):
        trainer_layout(RANKS, "disabled")
    with pytest.raises(InvalidInput, match=r"routed_experts\[0\]: expected a row for each of 13 tokens, got 12"):
        rank_batch(verl_data(0), [None] * 2, None, LAYERS, mode="R2")
