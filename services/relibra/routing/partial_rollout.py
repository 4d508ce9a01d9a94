"""Sequences generated in pieces: partial rollouts and turns of a conversation."""

from enum import Enum

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import SequenceRouting


class Keep(Enum):
    """Which row to keep when both pieces have one for a token; the pieces may come from different weights."""

    EARLIER = "earlier"
    """Keep the row that was recorded first, as verl does."""
    LATER = "later"
    """Keep the row that the engine sent last, as slime does."""


def join(earlier: SequenceRouting, later: SequenceRouting, keep: Keep) -> SequenceRouting:
    """Join two pieces of one sequence. Every token gets one row, even if both pieces have one.

    Raises:
        InvalidInput: the pieces belong to different models, the place of a piece is not known, or the later piece has
            fewer tokens than the earlier one.
    """
    if not (earlier.is_placed and later.is_placed):
        raise InvalidInput.of(
            "num_tokens",
            expected="the token counts of both pieces (usage, or return_token_ids), or the start of their rows",
            got="none, so that their rows have no place in the sequence",
        )
    if earlier.layers != later.layers:
        raise InvalidInput.of("layers", expected="two pieces of one model", got="different layers")
    if later.num_tokens < earlier.num_tokens:
        raise InvalidInput.of(
            "num_tokens", expected=f"at least the {earlier.num_tokens} of the earlier piece", got=later.num_tokens
        )
    kept, other = (earlier, later) if keep is Keep.EARLIER else (later, earlier)
    new_T = ~np.isin(other.position_T, kept.position_T)
    position_T = np.concatenate([kept.position_T, other.position_T[new_T]])
    order_T = np.argsort(position_T, kind="stable")
    return SequenceRouting(
        layers=earlier.layers,
        routed_TLK=np.concatenate([kept.narrow(), other.narrow()[new_T]])[order_T],
        position_T=position_T[order_T],
        num_tokens=later.num_tokens,
    )
