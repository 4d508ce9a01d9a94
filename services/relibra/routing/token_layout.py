"""How trainers assign tokens to ranks: data, context and sequence parallelism, packing and padding.

S sequences, N rows (tokens and padding), M micro-batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The ranks of one pipeline stage in Megatron's order: tensor ranks vary fastest, then context, then data.

    Expert-parallel groups divide the same ranks again: expert-tensor ranks vary fastest, then expert ranks. All stages
    are divided alike.
    """

    data: int
    expert: int
    context: int = 1
    tensor: int = 1
    """Tensor-parallel ranks, with sequence parallelism, which MoE layers require."""
    expert_tensor: int = 1
    zigzag: bool = True
    """Whether context-parallel rank c holds chunks c and 2C - 1 - c of 2C; otherwise it holds chunk c of C."""

    def __post_init__(self) -> None:
        for field in ("data", "expert", "context", "tensor", "expert_tensor"):
            if getattr(self, field) < 1:
                raise InvalidInput.of(f"layout.{field}", expected="at least 1", got=getattr(self, field))
        if self.num_ranks % (self.expert * self.expert_tensor):
            raise InvalidInput.of(
                "layout.expert",
                expected=f"expert x expert_tensor to divide the {self.num_ranks} ranks of a stage",
                got=f"{self.expert} x {self.expert_tensor}",
            )

    @property
    def num_ranks(self) -> int:
        """The number of ranks of a stage."""
        return self.data * self.context * self.tensor

    @property
    def num_ep_groups(self) -> int:
        """The number of EP groups: the expert-data-parallel size."""
        return self.num_ranks // (self.expert * self.expert_tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPacking:
    """How a framework packs and pads a micro-batch of one data-parallel rank."""

    sequence_multiple: int
    """Every sequence is padded to a multiple of this before it is split over context-parallel ranks."""
    rank_multiple: int
    """The rows of each context-parallel rank are padded to a multiple of this after the split."""
    is_packed: bool = True
    """Whether sequences follow one another; otherwise all are padded to the longest, and each is split by itself."""
    pack_multiple: int = 1
    """The last sequence of a pack is padded further, so that the rows of the pack are a multiple of this."""

    @classmethod
    def verl(cls, layout: ParallelLayout) -> "TokenPacking":
        """Return verl's sequence packing."""
        multiple = layout.tensor * layout.context * 2 if layout.context > 1 else layout.tensor
        return cls(sequence_multiple=multiple, rank_multiple=1)

    @classmethod
    def slime(cls, layout: ParallelLayout, pad_multiplier: int = 128) -> "TokenPacking":
        """Return slime's sequence packing; `pad_multiplier` is slime's `data_pad_size_multiplier`."""
        return cls(
            sequence_multiple=2 * layout.context if layout.context > 1 else 1,
            rank_multiple=layout.tensor * pad_multiplier,
        )

    @classmethod
    def padded(cls, layout: ParallelLayout, multiple: int = 1) -> "TokenPacking":
        """Return padding of all sequences to the longest of the micro-batch, rounded up to a multiple of `multiple`."""
        needed = layout.tensor * layout.context * (2 if layout.context > 1 and layout.zigzag else 1)
        return cls(sequence_multiple=math.lcm(needed, multiple), rank_multiple=1, is_packed=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenLayout:
    """The rank that each row of a step starts from: one entry per token and per padding row, `[N]` each."""

    sequence_N: NDArray[np.int64]
    """The sequence of each row; -1 for padding."""
    position_N: NDArray[np.int64]
    """The token of the sequence; for padding, the place in its run of padding."""
    micro_batch_N: NDArray[np.int64]
    source_rank_N: NDArray[np.int64]
    ep_group_N: NDArray[np.int64]


def lay_out(
    micro_batches: Sequence[Sequence[Sequence[int]]],
    length_S: NDArray[np.integer],
    layout: ParallelLayout,
    packing: TokenPacking,
    num_rows_M: Sequence[int] | None = None,
) -> TokenLayout:
    """Return the layout of a step, which contains every token of every sequence exactly once.

    Args:
        micro_batches: the sequences of every data-parallel rank and micro-batch, `[data][M][...]`.
        length_S: the number of tokens of every sequence.
        layout: the ranks.
        packing: how micro-batches are packed and padded.
        num_rows_M: the rows to which each micro-batch is padded; see `padded_lengths`.

    Raises:
        InvalidInput: ranks have different numbers of micro-batches; a sequence is missing, unknown or listed twice; or
            the padded rows do not split evenly.
    """
    check_dealt(micro_batches, len(length_S), layout.data)
    columns = [
        _lay_out_one(
            np.asarray(length_S)[sequences],
            np.asarray(sequences),
            layout,
            packing,
            data_rank,
            micro_batch,
            None if num_rows_M is None else num_rows_M[micro_batch],
        )
        for data_rank, of_rank in enumerate(micro_batches)
        for micro_batch, sequences in enumerate(of_rank)
        if len(sequences)
    ]
    sequence_N, position_N, micro_batch_N, rank_N = np.concatenate(columns, axis=1)
    ep_rank_N = rank_N // layout.expert_tensor
    return TokenLayout(
        sequence_N=sequence_N,
        position_N=position_N,
        micro_batch_N=micro_batch_N,
        source_rank_N=ep_rank_N % layout.expert,
        ep_group_N=ep_rank_N // layout.expert,
    )


def _lay_out_one(
    length_B: NDArray[np.integer],
    sequence_B: NDArray[np.integer],
    layout: ParallelLayout,
    packing: TokenPacking,
    data_rank: int,
    micro_batch: int,
    num_rows: int | None,
) -> NDArray[np.int64]:
    """Return the rows of one micro-batch as columns (sequence, position, micro-batch, rank of the stage)."""
    num_chunks = check_chunks(layout, packing)
    padded_B = padded_lengths(length_B, packing, num_chunks, num_rows)
    row_B = np.repeat(np.arange(len(padded_B)), padded_B)
    place_N = np.arange(len(row_B)) - np.repeat(np.cumsum(padded_B) - padded_B, padded_B)
    chunk_B = padded_B // num_chunks
    chunk_N, local_N = np.divmod(place_N, chunk_B[row_B])
    is_back_N = chunk_N >= layout.context
    context_N = np.where(is_back_N, num_chunks - 1 - chunk_N, chunk_N)
    local_N += np.where(is_back_N, chunk_B[row_B], 0)
    local_B = padded_B // layout.context
    num_local = int(local_B.sum() if packing.is_packed else local_B[0])
    if packing.is_packed:
        local_N += (np.cumsum(local_B) - local_B)[row_B]
    num_tail = -num_local % packing.rank_multiple
    check_shares(num_local + num_tail, layout)
    tail_context_N, tail_N = np.divmod(np.arange(layout.context * num_tail), max(1, num_tail))
    context_N = np.concatenate([context_N, tail_context_N])
    tensor_N = np.concatenate([local_N, num_local + tail_N]) * layout.tensor // (num_local + num_tail)
    is_token_N = place_N < length_B[row_B]
    sequence_N = np.where(is_token_N, sequence_B[row_B], -1)
    position_N = np.where(is_token_N, place_N, place_N - length_B[row_B])
    return np.stack(
        [
            np.concatenate([sequence_N, np.full_like(tail_N, -1)]),
            np.concatenate([position_N, tail_N]),
            np.full(len(context_N), micro_batch),
            (data_rank * layout.context + context_N) * layout.tensor + tensor_N,
        ]
    ).astype(np.int64)


def padded_lengths(
    length_B: NDArray[np.integer], packing: TokenPacking, num_chunks: int, num_rows: int | None = None
) -> NDArray[np.int64]:
    """Return the rows that each sequence of a micro-batch takes with its padding, before ranks share them.

    Args:
        length_B: the number of tokens of each sequence.
        packing: how the micro-batch is packed and padded.
        num_chunks: the number of chunks into which context parallelism cuts each sequence.
        num_rows: the rows to which the trainer pads the micro-batch: of all sequences together if they are packed, else
            of each. By default they follow from `packing`.

    Raises:
        InvalidInput: the sequences do not fit into `num_rows`, or a padded sequence cannot be cut into chunks.
    """
    tokens_B = np.asarray(length_B, dtype=np.int64)
    padded_B = -(-tokens_B // packing.sequence_multiple) * packing.sequence_multiple
    if packing.is_packed:
        needed = int(padded_B.sum())
        total = -(-needed // packing.pack_multiple) * packing.pack_multiple if num_rows is None else num_rows
        padded_B[-1] += total - needed
    else:
        needed = int(tokens_B.max())
        total = int(padded_B.max()) if num_rows is None else num_rows
        padded_B[:] = total
    if total < needed:
        raise InvalidInput.of("num_rows", expected=f"at least {needed}, as the sequences need", got=total)
    if (padded_B % num_chunks).any():
        raise InvalidInput.of("num_rows", expected=f"padding to multiples of {num_chunks} chunks", got=total)
    return padded_B


def check_chunks(layout: ParallelLayout, packing: TokenPacking) -> int:
    """Return the number of chunks into which context parallelism cuts each padded sequence.

    Raises:
        InvalidInput: sequences are padded to lengths that this many chunks do not divide.
    """
    num_chunks = 2 * layout.context if layout.zigzag and layout.context > 1 else layout.context
    if packing.sequence_multiple % num_chunks:
        raise InvalidInput.of(
            "packing.sequence_multiple", expected=f"a multiple of {num_chunks} chunks", got=packing.sequence_multiple
        )
    return num_chunks


def check_shares(num_rows: int, layout: ParallelLayout) -> int:
    """Return the rows of each tensor-parallel rank, of the `num_rows` of a context-parallel rank.

    Raises:
        InvalidInput: the rows cannot be shared equally.
    """
    if num_rows % layout.tensor:
        raise InvalidInput.of(
            "packing", expected=f"rows that {layout.tensor} tensor-parallel ranks can share", got=f"{num_rows} rows"
        )
    return num_rows // layout.tensor


def check_dealt(micro_batches: Sequence[Sequence[Sequence[int]]], num_sequences: int, num_data_ranks: int) -> None:
    """Return if the micro-batches of all data-parallel ranks hold each sequence exactly once.

    Raises:
        InvalidInput: ranks have different numbers of micro-batches; a sequence is missing, unknown or listed twice.
    """
    if len(micro_batches) != num_data_ranks:
        raise InvalidInput.of(
            "micro_batches", expected=f"a list for each of {num_data_ranks} data ranks", got=len(micro_batches)
        )
    counts = {len(each) for each in micro_batches}
    if len(counts) > 1:
        raise InvalidInput.of("micro_batches", expected="the same number for every data rank", got=sorted(counts))
    dealt = sorted(sequence for of_rank in micro_batches for sequences in of_rank for sequence in sequences)
    if dealt != list(range(num_sequences)):
        raise InvalidInput.of(
            "micro_batches", expected=f"each of sequences 0 to {num_sequences - 1} once", got=f"{len(dealt)} entries"
        )
