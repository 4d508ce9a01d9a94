"""Sequences that were generated in pieces: partial rollouts, and turns of a conversation."""

from enum import Enum

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.sequence_routing import SequenceRouting


class Keep(Enum):
    """Whose row counts where both pieces have one; the pieces may come from different weights."""

    EARLIER = "earlier"
    """As verl does: what was recorded first stays."""
    LATER = "later"
    """As slime does: the engine's last word."""


def join(earlier: SequenceRouting, later: SequenceRouting, keep: Keep) -> SequenceRouting:
    """Return one sequence of two pieces of it. Every token gets one row, however often it was sent.

    Raises:
        InvalidInput: the pieces are of different models, or the later one is the shorter.
    """
    if earlier.layers != later.layers:
        raise InvalidInput.of("layers", expected="two pieces of one model", got="different layers")
    if later.num_tokens < earlier.num_tokens:
        raise InvalidInput.of("num_tokens", expected=f"at least the {earlier.num_tokens} before", got=later.num_tokens)
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
