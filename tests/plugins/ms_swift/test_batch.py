import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engine_payloads import all_layers
from harness.framework_batches import LAYERS, LENGTHS, check_rows, sequence_rows
from relibra.errors import InvalidInput
from relibra.plugins.ms_swift.batch import names, rank_batch, routings
from relibra.routing.sequence_name import name_sequence

MICRO_BATCHES = ([0, 2], [1, 3])
ROWS = sequence_rows(0)


def filled(sample: int, num_rows: int) -> np.ndarray:
    """Return the rows of a sample as ms-swift's `_pad_or_trim_routed_experts` fills them, over all layers."""
    rows_NLK = ROWS[sample]
    zeros = np.zeros((num_rows - len(rows_NLK), LAYERS.num_layers, LAYERS.top_k), np.int64)
    return np.concatenate([all_layers(rows_NLK, LAYERS, "int64"), zeros])


def test_padding_of_a_pack_has_no_rows() -> None:
    """With context parallelism, ms-swift fills a pack with sequences of padding tokens."""
    padding, micro_batches = 4, []
    for samples in MICRO_BATCHES:
        lengths = [-(-LENGTHS[0][each] // padding) * padding for each in samples]
        packed = [filled(each, length) for each, length in zip(samples, lengths, strict=True)]
        packed.append(np.zeros((padding, LAYERS.num_layers, LAYERS.top_k), np.int64))
        routed = torch.from_numpy(np.concatenate(packed)[None])
        micro_batches.append(routings(routed, torch.tensor([*lengths, padding]), LAYERS))
    check_rows(
        rank_batch(micro_batches), [[*(ROWS[each] for each in samples), ROWS[0][:0]] for samples in MICRO_BATCHES]
    )


def test_sequences_that_are_not_packed_have_their_rows() -> None:
    micro_batches = [
        routings(torch.from_numpy(np.stack([filled(each, 24) for each in samples])), None, LAYERS)
        for samples in MICRO_BATCHES
    ]
    check_rows(rank_batch(micro_batches), [[ROWS[each] for each in samples] for samples in MICRO_BATCHES])


def test_sequences_have_the_names_of_their_own_tokens() -> None:
    """Whether they are packed, filled up for context parallelism, or neither."""
    tokens = [np.arange(1, length + 1) for length in LENGTHS[0][:2]]
    wanted = [name_sequence(each) for each in tokens]
    for multiple in (1, 4):
        lengths = [-(-len(each) // multiple) * multiple for each in tokens]
        of_each = [filled(sample, length) for sample, length in enumerate(lengths)]
        of_pack = routings(torch.from_numpy(np.concatenate(of_each)[None]), torch.tensor(lengths), LAYERS)
        ids = [np.pad(each, (0, length - len(each))) for each, length in zip(tokens, lengths, strict=True)]
        assert names(torch.from_numpy(np.concatenate(ids)[None]), torch.tensor(lengths), of_pack) == wanted
    rows = torch.from_numpy(np.stack([filled(sample, 24) for sample in range(2)]))
    ids = [np.pad(each, (0, 24 - len(each))) for each in tokens]
    assert names(torch.from_numpy(np.stack(ids)), None, routings(rows, None, LAYERS)) == wanted


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
