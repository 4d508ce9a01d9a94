"""Batches in the form of each framework, and the rows that its trainer replays, both written from the framework's code.

N tokens, X transformer layers, L MoE layers, K top-k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.engine_payloads import all_layers, routes
from relibra.routing import ModelLayers
from relibra.routing.token_layout import ParallelLayout
from relibra.steps import RankBatch, TrainerLayout
from relibra.steps.rank_parts import count_rank

LAYERS = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, True))
RANKS = ParallelLayout(data=2, context=2, tensor=2, expert=4)
"""Eight ranks in two EP groups, with every way of splitting a sequence."""
LENGTHS = ([13, 7, 22, 5], [9, 18, 4, 11])
"""The number of tokens of each sequence, by data rank."""
NATIVE = -1

Counts = NDArray[np.int64]
Fill = Callable[[int], NDArray[np.integer]]
"""Returns so many rows of padding, `[P, L, K]`."""


@dataclass
class Replayed:
    """Counts of the rows that each rank of a stage replays in each micro-batch, by (row, source rank)."""

    ranks: ParallelLayout = field(default_factory=lambda: RANKS)
    num_micro_batches: int = 2

    def __post_init__(self) -> None:
        self.counts_MRLE = np.zeros(
            (self.ranks.num_ep_groups * self.num_micro_batches, self.ranks.expert, LAYERS.num_moe_layers, 8), np.int64
        )

    def add(self, data_rank: int, micro_batch: int, context: int, tensor: int, rows_NLK: NDArray[np.integer]) -> None:
        """Count the rows of one rank, except NATIVE rows, whose experts the router chooses."""
        rank = (data_rank * self.ranks.context + context) * self.ranks.tensor + tensor
        group, source = divmod(rank, self.ranks.expert)
        counts_LE = self.counts_MRLE[group * self.num_micro_batches + micro_batch, source]
        for row_LK in rows_NLK:
            for layer, chosen_K in enumerate(row_LK):
                for expert in chosen_K:
                    if expert != NATIVE:
                        counts_LE[layer, expert] += 1

    def add_packed(
        self,
        data_rank: int,
        micro_batch: int,
        sequences: Sequence[NDArray[np.integer]],
        fill: Fill,
        *,
        sequence_multiple: int,
        rank_multiple: int = 1,
    ) -> None:
        """Pad sequences, cut them in zigzag, concatenate each rank's cuts, pad again, and cut by tensor rank."""
        context, tensor = self.ranks.context, self.ranks.tensor
        for rank in range(context):
            cuts = []
            for rows_NLK in sequences:
                padded = np.concatenate([rows_NLK, fill(-len(rows_NLK) % sequence_multiple)])
                chunks = np.split(padded, 2 * context)
                cuts += [chunks[rank], chunks[2 * context - 1 - rank]]
            local = np.concatenate(cuts)
            local = np.concatenate([local, fill(-len(local) % rank_multiple)])
            for part, rows_NLK in enumerate(np.split(local, tensor)):
                self.add(data_rank, micro_batch, rank, part, rows_NLK)


def sequence_rows(data_rank: int) -> list[NDArray[np.int64]]:
    """Return the routes that the rollout recorded: one row fewer than tokens."""
    return [routes(10 * data_rank + place, length - 1, LAYERS) for place, length in enumerate(LENGTHS[data_rank])]


def with_last(rows_NLK: NDArray[np.integer], last: NDArray[np.integer]) -> NDArray[np.integer]:
    """Append the row of the last token."""
    return np.concatenate([rows_NLK, last])


def native(num_rows: int) -> NDArray[np.int64]:
    """Return rows whose experts the router chooses."""
    return np.full((num_rows, LAYERS.num_moe_layers, LAYERS.top_k), NATIVE)


def first_experts(num_rows: int) -> NDArray[np.int64]:
    """Return rows of `arange(topk)`."""
    return np.broadcast_to(np.arange(LAYERS.top_k), (num_rows, LAYERS.num_moe_layers, LAYERS.top_k))


def consecutive_ids(num_rows: int) -> NDArray[np.int64]:
    """Return the rows of slime's `_pad_routed_experts`, MoE layers only."""
    flat = np.arange(num_rows * LAYERS.num_layers * LAYERS.top_k) % LAYERS.num_experts
    return flat.reshape(num_rows, LAYERS.num_layers, LAYERS.top_k)[:, 1:]


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
        rows = [with_last(each, routes(99, 1, LAYERS)) for each in rows]
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


def skyrl_batches(data_rank: int, *, is_packed: bool = True) -> list[dict[str, Any]]:
    """Return two micro-batches as SkyRL hands them to its `MegatronModelWrapper`, padded on the left.

    In 0.4.0 the routes are a `PackedTensor`; older versions pad them, too.
    """
    routed, mask = padded(data_rank, is_left=True)
    batches: list[dict[str, Any]] = []
    for of_batch, of_mask in zip(routed.split(2), mask.split(2), strict=True):
        if is_packed:
            offsets = torch.cat([torch.zeros(1, dtype=torch.int32), of_mask.sum(dim=1).cumsum(0).to(torch.int32)])
            of_batch = SimpleNamespace(values=of_batch[of_mask.bool()], cu_seqlens=offsets)
        batches.append({"rollout_expert_indices": of_batch, "attention_mask": of_mask})
    return batches


def trained_counts(batch: RankBatch, data_rank: int, trainer: TrainerLayout, num_micro_batches: int = 2) -> Counts:
    """Return the counts of a batch's parts, by (row, source rank)."""
    counts_MRLE = Replayed(trainer.ranks, num_micro_batches).counts_MRLE
    for part in count_rank(batch, data_rank, trainer):
        counts_MRLE[part.ep_group * num_micro_batches + part.micro_batch, part.source_rank] += part.counts.counts_LE
    return counts_MRLE
