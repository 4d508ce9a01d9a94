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
