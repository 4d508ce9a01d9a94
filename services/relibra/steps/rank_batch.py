"""The batch of one data-parallel rank and its trainer's layout, in a form into which every framework is translated."""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.routing.filler import FillerRule
from relibra.routing.sequence_routing import SequenceRouting
from relibra.routing.token_layout import ParallelLayout, TokenPacking


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankBatch:
    """The sequences of one data-parallel rank between two optimizer steps."""

    routings: Sequence[SequenceRouting]
    micro_batches: Sequence[Sequence[int]]
    """One list of places in `routings` per micro-batch, in order of training. Ranks have equally many micro-batches."""
    num_rows_M: Sequence[int] | None = None
    """The rows to which the trainer pads each micro-batch, if its packing does not tell: of all sequences together if
    they are packed, else of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLayout:
    """How a trainer assigns tokens to ranks, and the experts it gives to tokens without a route; equal on all ranks."""

    ranks: ParallelLayout
    packing: TokenPacking
    filler_rule: FillerRule
