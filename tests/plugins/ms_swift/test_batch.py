import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engine_payloads import all_layers
from harness.framework_batches import (
    LAYERS,
    LENGTHS,
    RANKS,
    Replayed,
    native,
    sequence_rows,
    trained_counts,
    with_last,
)
from relibra.errors import InvalidInput
from relibra.plugins.ms_swift.batch import rank_batch, routings, trainer_layout

MICRO_BATCHES = ([0, 2], [1, 3])


def filled(rows_NLK: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the rows as ms-swift's `_pad_or_trim_routed_experts` fills them, over all layers."""
    zeros = np.zeros((num_rows - len(rows_NLK), LAYERS.num_layers, LAYERS.top_k), np.int64)
    return np.concatenate([all_layers(rows_NLK, LAYERS, "int64"), zeros])


def test_what_is_planned_is_what_ms_swift_replays_of_packed_sequences() -> None:
    """With context parallelism, ms-swift fills a pack with sequences of 2 C padding tokens, cut like all others."""
    multiple = 2 * RANKS.context
    replayed, planned_MRLE = Replayed(), 0
    for data_rank in range(2):
        rows, micro_batches = sequence_rows(data_rank), []
        for index, samples in enumerate(MICRO_BATCHES):
            lengths = [-(-LENGTHS[data_rank][each] // multiple) * multiple for each in samples]
            lengths += [multiple] * (-sum(lengths) % (RANKS.tensor * RANKS.context * 4) // multiple)
            sequences = [with_last(rows[each], native(1)) for each in samples] + [native(multiple)] * (
                len(lengths) - len(samples)
            )
            replayed.add_packed(data_rank, index, sequences, native, sequence_multiple=multiple)
            packed = [filled(rows[each], length) for each, length in zip(samples, lengths, strict=False)]
            packed += [np.zeros((multiple, LAYERS.num_layers, LAYERS.top_k), np.int64)] * (len(lengths) - len(samples))
            routed = torch.from_numpy(np.concatenate(packed)[None])
            micro_batches.append(routings(routed, torch.tensor(lengths), LAYERS))
        planned_MRLE = planned_MRLE + trained_counts(rank_batch(micro_batches), data_rank, trainer_layout(RANKS))
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_sequences_that_are_not_packed_are_cut_each_by_itself() -> None:
    replayed, planned_MRLE = Replayed(), 0
    trainer = trainer_layout(RANKS, padding_free=False)
    for data_rank in range(2):
        rows, micro_batches = sequence_rows(data_rank), []
        for index, samples in enumerate(MICRO_BATCHES):
            width = -(-max(LENGTHS[data_rank][each] for each in samples) // 8) * 8
            for each in samples:
                cut = with_last(rows[each], native(width - len(rows[each])))
                replayed.add_packed(data_rank, index, [cut], native, sequence_multiple=8)
            routed = torch.from_numpy(np.stack([filled(rows[each], width) for each in samples]))
            micro_batches.append(routings(routed, None, LAYERS))
        planned_MRLE = planned_MRLE + trained_counts(rank_batch(micro_batches), data_rank, trainer)
    np.testing.assert_array_equal(planned_MRLE, replayed.counts_MRLE)


def test_routes_that_do_not_fit_are_refused() -> None:
    routed = torch.zeros((1, 8, LAYERS.num_layers, LAYERS.top_k), dtype=torch.int64)
    with pytest.raises(InvalidInput, match=r"routed_experts: expected \[1, 9, layers, K\] for the lengths"):
        routings(routed, torch.tensor([4, 5]), LAYERS)
    with pytest.raises(InvalidInput, match=r"routed_experts: expected \[B, S, layers, top 2\]"):
        routings(routed[..., :1], None, LAYERS)
    routed[0, :, 1:] = torch.tensor([1, 8])
    with pytest.raises(InvalidInput, match="routed_experts"):
        routings(routed, None, LAYERS)


def test_the_command_prints_a_file_that_is_alone_in_its_folder() -> None:
    """ms-swift puts the folder in front of all packages, so another file there could hide one."""
    command = [sys.executable, "-m", "relibra.integrations.ms_swift"]
    file = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert file.name == "relibra_for_ms_swift.py"
    assert {each.name for each in file.parent.iterdir()} - {"__pycache__"} == {file.name, "__init__.py"}
