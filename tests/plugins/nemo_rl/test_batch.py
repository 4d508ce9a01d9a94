import numpy as np
import pytest
import torch

from harness.framework_batches import (
    LAYERS,
    RANKS,
    Replayed,
    first_experts,
    native,
    nemo_batch,
    sequence_rows,
    trained_counts,
    with_last,
)
from relibra.errors import InvalidInput
from relibra.plugins.nemo_rl.batch import rank_batch, trainer_layout


def test_what_is_planned_is_what_nemo_rl_replays() -> None:
    trainer = trainer_layout(RANKS, make_sequence_length_divisible_by=16)
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows = [with_last(each, first_experts(1)) for each in sequence_rows(data_rank)]
        batch = nemo_batch(data_rank)
        # vLLM lost this route and sent -1, so the router decides.
        batch["routed_experts"] = batch["routed_experts"].clone()
        batch["routed_experts"][2, 1] = -1
        rows[2][1] = native(1)
        for index, samples in enumerate([[0, 1, 2], [3]]):
            replayed.add_packed(data_rank, index, [rows[each] for each in samples], first_experts, sequence_multiple=16)
        planned_MRLE = planned_MRLE + trained_counts(rank_batch(batch, LAYERS), data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_without_packing_sequences_are_as_long_as_the_batch_or_the_micro_batch_of_dynamic_size() -> None:
    trainer = trainer_layout(RANKS, make_sequence_length_divisible_by=8, sequence_packing=False)
    batch = nemo_batch(0)
    batch["routed_experts"] = torch.nn.functional.pad(batch["routed_experts"], (0, 0, 0, 0, 0, 2))
    batch.micro_batch_indices = None
    counts_MRLE = trained_counts(rank_batch(batch, LAYERS, train_micro_batch_size=2), 0, trainer)
    assert counts_MRLE.sum(axis=(1, 3)).tolist() == [[24 * 2 * 2] * 2] * 2 + [[0, 0]] * 2
    batch.micro_batch_indices, batch.micro_batch_lengths = [[[0, 2], [2, 4]]], [[16, 24]]
    counts_MRLE = trained_counts(rank_batch(batch, LAYERS, sequence_packing=False), 0, trainer)
    assert counts_MRLE.sum(axis=(1, 3)).tolist() == [[16 * 2 * 2] * 2, [24 * 2 * 2] * 2] + [[0, 0]] * 2


def test_the_last_sequence_of_a_pack_fills_it_up() -> None:
    batch = nemo_batch(0)
    padded = trainer_layout(RANKS, make_sequence_length_divisible_by=8, pack_multiple=32)
    counts_MRLE = trained_counts(rank_batch(batch, LAYERS), 0, padded)
    assert counts_MRLE.sum(axis=(1, 3)).tolist() == [[64 * 2] * 2, [32 * 2] * 2] + [[0, 0]] * 2
    trainer = trainer_layout(RANKS, make_sequence_length_divisible_by=8)
    counts_MRLE = trained_counts(rank_batch(batch, LAYERS, pack_length=56), 0, trainer)
    assert counts_MRLE.sum(axis=(1, 3)).tolist() == [[56 * 2] * 2] * 2 + [[0, 0]] * 2
    with pytest.raises(InvalidInput, match="num_rows: expected at least 48, as the sequences need, got 40"):
        trained_counts(rank_batch(batch, LAYERS, pack_length=40), 0, trainer)


def test_rows_of_dense_layers_are_ignored_and_a_row_that_is_lost_in_part_is_refused() -> None:
    trainer = trainer_layout(RANKS, make_sequence_length_divisible_by=16)
    batch = nemo_batch(0)
    expected_MRLE = trained_counts(rank_batch(batch, LAYERS), 0, trainer)
    batch["routed_experts"][0, 3:5] = torch.arange(2)  # of an environment: experts 0 to K - 1 in all layers
    counts_MRLE = trained_counts(rank_batch(batch, LAYERS), 0, trainer)
    assert counts_MRLE.sum() == expected_MRLE.sum()
    batch["routed_experts"][0, 12] = -1  # the last token of a turn that failed is left to the router, too
    assert trained_counts(rank_batch(batch, LAYERS), 0, trainer).sum() == expected_MRLE.sum() - 4
    batch["routed_experts"][0, 4, 1] = -1
    with pytest.raises(InvalidInput, match=r"routed_experts\[0\]: expected expert ids, or -1 throughout"):
        rank_batch(batch, LAYERS)


def test_a_size_that_is_missing_and_several_global_batches_are_refused() -> None:
    batch = nemo_batch(0)
    batch.micro_batch_indices = None
    with pytest.raises(InvalidInput, match="train_micro_batch_size: expected a divisor of the 4 sequences, got None"):
        rank_batch(batch, LAYERS)
    batch.micro_batch_indices = [[[0, 4]], [[0, 4]]]
    with pytest.raises(InvalidInput, match="micro_batch_indices: expected the indices of one global batch, got 2"):
        rank_batch(batch, LAYERS)
    batch["input_lengths"] = torch.tensor([0, 1, 1, 1])
    batch.micro_batch_indices = [[[0, 4]]]
    with pytest.raises(InvalidInput, match="at least one token"):
        rank_batch(batch, LAYERS)
