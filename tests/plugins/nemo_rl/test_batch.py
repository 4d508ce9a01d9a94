import numpy as np
import pytest
import torch

from harness.framework_batches import LAYERS, check_rows, first_experts, nemo_batch, sequence_rows
from relibra.errors import InvalidInput
from relibra.plugins.nemo_rl.batch import rank_batch

ROWS = [np.concatenate([each, first_experts(1)]) for each in sequence_rows(0)]
"""NeMo-RL replays the first experts for last tokens."""


def test_the_rows_that_nemo_rl_replays_are_reported() -> None:
    batch = nemo_batch(0)
    batch["routed_experts"] = batch["routed_experts"].clone()
    batch["routed_experts"][2, 1] = -1  # vLLM lost this route, so the router decides
    check_rows(rank_batch(batch, LAYERS), [[ROWS[0], ROWS[1], np.delete(ROWS[2], 1, axis=0)], [ROWS[3]]])


def test_without_packing_micro_batches_are_runs_of_equal_size_or_those_of_dynamic_batching() -> None:
    batch = nemo_batch(0)
    batch["routed_experts"] = torch.nn.functional.pad(batch["routed_experts"], (0, 0, 0, 0, 0, 2))
    batch.micro_batch_indices = None
    check_rows(rank_batch(batch, LAYERS, train_micro_batch_size=2), [ROWS[:2], ROWS[2:]])
    batch.micro_batch_indices = [[[0, 1], [1, 4]]]
    check_rows(rank_batch(batch, LAYERS), [ROWS[:1], ROWS[1:]])


def test_rows_of_dense_layers_are_ignored_and_a_row_that_is_lost_in_part_is_refused() -> None:
    batch = nemo_batch(0)
    batch["routed_experts"][0, 3:5] = torch.arange(2)  # of an environment: experts 0 to K - 1 in all layers
    assert rank_batch(batch, LAYERS).routings[0].num_missing == 0
    batch["routed_experts"][0, 12] = -1  # the last token of a turn that failed is left to the router, too
    assert rank_batch(batch, LAYERS).routings[0].num_missing == 1
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
