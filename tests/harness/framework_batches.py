"""Batches in the form of each framework, and the rows of the rollout in them, both written from the framework's code.

N tokens, X transformer layers, L MoE layers, E experts, K top-k.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.engine_payloads import all_layers, routes
from relibra.routing import ModelLayers
from relibra.steps import RankBatch

LAYERS = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, True))
LENGTHS = ([13, 7, 22, 5], [9, 18, 4, 11])
"""The number of tokens of each sequence, by data rank."""


def sequence_rows(data_rank: int) -> list[NDArray[np.int64]]:
    """Return the routes that the rollout recorded: one row fewer than tokens."""
    return [routes(10 * data_rank + place, length - 1, LAYERS) for place, length in enumerate(LENGTHS[data_rank])]


def first_experts(num_rows: int) -> NDArray[np.int64]:
    """Return rows of `arange(topk)`."""
    return np.broadcast_to(np.arange(LAYERS.top_k), (num_rows, LAYERS.num_moe_layers, LAYERS.top_k))


def check_rows(batch: RankBatch, micro_batches: Sequence[Sequence[NDArray[np.integer]]]) -> None:
    """Check that the sequences of each micro-batch have these rows, and no others."""
    found = [[batch.routings[place].routed_TLK for place in places] for places in batch.micro_batches]
    assert [list(map(len, of_one)) for of_one in found] == [list(map(len, of_one)) for of_one in micro_batches]
    for of_one, expected in zip(found, micro_batches, strict=True):
        np.testing.assert_array_equal(np.concatenate(of_one), np.concatenate(expected))


def slime_rollout_data(data_rank: int) -> dict[str, Any]:
    """Return `rollout_data` of slime 624b824's `RolloutManager._split_train_data_by_dp`, with two training steps."""
    return {
        "partition": [data_rank, data_rank + 2],
        "tokens": [[0] * length for length in LENGTHS[data_rank]],
        "rollout_routed_experts": [
            torch.from_numpy(all_layers(rows, LAYERS, "int32")) for rows in sequence_rows(data_rank)
        ],
        "micro_batch_indices": [[0, 2], [1], [3]],
        "num_microbatches": [2, 1],
    }


def verl_data(data_rank: int, *, is_recorded: bool = False) -> dict[str, Any]:
    """Return jagged int16 `data` of verl 1dda039's `forward_backward_batch`; R2 has a row for every token."""
    rows = sequence_rows(data_rank)
    if is_recorded:
        rows = [np.concatenate([each, routes(99, 1, LAYERS)]) for each in rows]
        routed = [torch.from_numpy(each.astype(np.int16)) for each in rows]
    else:
        routed = [torch.from_numpy(all_layers(each, LAYERS, "int16")) for each in rows]
    tokens = [torch.zeros(length, dtype=torch.int64) for length in LENGTHS[data_rank]]
    return {
        "input_ids": torch.nested.as_nested_tensor(tokens, layout=torch.jagged),
        "routed_experts": torch.nested.as_nested_tensor(routed, layout=torch.jagged),
    }


def padded(data_rank: int, *, is_left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return routed experts `[B, S, X, K]`, with `arange(topk)` for padding and last tokens, and the attention mask."""
    most = max(LENGTHS[data_rank])
    routed_BSXK = np.broadcast_to(np.arange(LAYERS.top_k), (4, most, LAYERS.num_layers, LAYERS.top_k)).copy()
    routed_BSXK[:, :, 0] = 0
    mask_BS = np.zeros((4, most), dtype=np.int64)
    for place, rows in enumerate(sequence_rows(data_rank)):
        start = most - len(rows) - 1 if is_left else 0
        routed_BSXK[place, start : start + len(rows)] = all_layers(rows, LAYERS, "int64")
        mask_BS[place, start : start + len(rows) + 1] = 1
    return torch.from_numpy(routed_BSXK.astype(np.int16)), torch.from_numpy(mask_BS)


class NemoBatch(dict[str, Any]):
    """A batch like the `SlicedDataDict` that NeMo-RL 7ea279a's `get_batch` returns."""

    micro_batch_indices: list[list[list[int]]] | None = None
    micro_batch_lengths: list[list[int]] | None = None


def nemo_batch(data_rank: int) -> NemoBatch:
    """Return one global batch in two packed micro-batches."""
    routed, mask = padded(data_rank, is_left=False)
    batch = NemoBatch(routed_experts=routed, input_lengths=mask.sum(dim=1), input_ids=mask)
    batch.micro_batch_indices = [[[0, 3], [3, 4]]]
    return batch


def skyrl_batches(data_rank: int) -> list[dict[str, Any]]:
    """Return two micro-batches as SkyRL hands them to its `MegatronModelWrapper`: padded on the left, packed routes."""
    routed, mask = padded(data_rank, is_left=True)
    batches: list[dict[str, Any]] = []
    for of_batch, of_mask in zip(routed.split(2), mask.split(2), strict=True):
        offsets = torch.cat([torch.zeros(1, dtype=torch.int32), of_mask.sum(dim=1).cumsum(0).to(torch.int32)])
        of_batch = SimpleNamespace(values=of_batch[of_mask.bool()], cu_seqlens=offsets)
        tokens = torch.arange(of_mask.numel()).view(of_mask.shape) + 1000 * (len(batches) + 1) * (data_rank + 1)
        batches.append({"rollout_expert_indices": of_batch, "attention_mask": of_mask, "sequences": tokens})
    return batches
