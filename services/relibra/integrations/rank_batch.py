"""`RankBatch`: what one data-parallel rank trains on in a step, in the form that all frameworks come down to."""

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
    """Places in `routings`, each once, in the order of training. One list a micro-batch, as many on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLayout:
    """How a trainer deals tokens to ranks, and what it makes of tokens without a route; equal on all ranks."""

    ranks: ParallelLayout
    packing: TokenPacking
    filler_rule: FillerRule
