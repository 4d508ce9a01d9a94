"""From which source ranks the tokens of every replica come: its source shares.

There is one number per replica and source rank, which is gigabytes for hundreds of ranks. Shares are therefore not
stored. They are computed in blocks each time they are read, so reading the shares of one rank never holds those of all.

Where loads are known, a share is a number of tokens. In a forecast the actual loads differ from the planned ones, and
everything above a fixed number of tokens would stay with the home. The shares of a forecast are therefore fractions:
each source rank sends that fraction of its tokens of an expert to each replica, in token order, and the rest to the
home. Where the load is as planned, fractions and token counts come to the same.

E experts, R EP ranks, Q quotas, Y replicas, B replicas of one block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

WHOLE = 1 << 15
"""The fractions of an expert sum to this, the home's included."""
_BLOCK = 1 << 13
"""Replicas of a block of fractions."""

_Array = TypeVar("_Array")
"""int64 numpy arrays or torch tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShares:
    """Tokens of every replica by source rank, int32 `[Y, R]`, as consecutive blocks `[B, R]`.

    Replicas are in the order of the plan's quotas. Tokens that no replica takes go to the home. A forecast has
    fractions of the source rank's tokens in place of tokens, in units of 2**-15.
    """

    num_ranks: int
    blocks: Callable[[], Iterator[NDArray[np.int32]]]
    """Returns an iterator that starts at the first block, on every call."""

    @classmethod
    def stored(cls, share_YR: NDArray[np.int32]) -> "SourceShares":
        """Wrap shares that are in memory, as read from a plan file."""
        return cls(num_ranks=share_YR.shape[-1], blocks=lambda: iter([share_YR]))

    def of_rank(self, rank: int) -> NDArray[np.int32]:
        """Return the shares of one source rank, `[Y]`."""
        parts = [np.zeros(0, dtype=np.int32), *(block_BR[:, rank] for block_BR in self.blocks())]
        return np.concatenate(parts)

    def to_array(self) -> NDArray[np.int32]:
        """Return all shares at once, `[Y, R]`."""
        return np.concatenate([np.zeros((0, self.num_ranks), dtype=np.int32), *self.blocks()])


def fractions(
    quota_index_Q4: NDArray[np.int32], quota_tokens_Q: NDArray[np.int64], home_LE: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the fraction of its expert's tokens in its cell that every replica takes by its quota, int32 `[Y]`."""
    _, layer_Q, expert_Q, rank_Q = quota_index_Q4.T
    number_Q = _numbered(quota_index_Q4)
    # Sums in float64 are exact: they stay far below 2**53.
    total_Q = np.bincount(number_Q, weights=quota_tokens_Q)[number_Q].astype(np.int64)
    fraction_Q = quota_tokens_Q * WHOLE // np.maximum(total_Q, 1)
    fraction_Y: NDArray[np.int32] = fraction_Q[home_LE[layer_Q, expert_Q] != rank_Q].astype(np.int32)
    return fraction_Y


def begins(replica_index_Y4: NDArray[np.int32], share: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return where each replica's share of its expert's tokens begins: behind those of replicas on lower ranks.

    Args:
        replica_index_Y4: (row, layer, expert, rank) of every replica, sorted.
        share: tokens or fractions of every replica, `[Y, ...]`.

    Returns:
        The sum of the shares of replicas of the same expert and cell on lower ranks, int64, shaped like `share`.
    """
    before = np.cumsum(share, axis=0, dtype=np.int64) - share
    number_Y = _numbered(replica_index_Y4)
    within: NDArray[np.int64] = before - before[np.searchsorted(number_Y, number_Y)]
    return within


def tokens_of(
    num_tokens: _Array, begin: _Array, fraction: _Array, rank: int | NDArray[np.int64], num_ranks: int
) -> _Array:
    """Return how many of its tokens of an expert a source rank sends to a replica, elementwise.

    Every source rank rounds its cut points at another place. Where each has few tokens, a replica therefore gets from
    one rank what rounding takes from it on another.

    Args:
        num_tokens: tokens of the replica's expert that the source rank has.
        begin: where the replica's fraction begins, as `begins` returns it.
        fraction: the replica's fraction.
        rank: the source rank, or several that broadcast with the other arguments.
        num_ranks: R.
    """
    offset = rank * WHOLE // num_ranks
    up_to, before = num_tokens * (begin + fraction), num_tokens * begin  # type: ignore[operator]
    return (up_to + offset) // WHOLE - (before + offset) // WHOLE  # type: ignore[no-any-return]


def fraction_shares(
    quota_index_Q4: NDArray[np.int32],
    quota_tokens_Q: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    num_ranks: int,
) -> SourceShares:
    """Return the fractions as the source shares of a plan; they are equal for all source ranks."""

    def blocks() -> Iterator[NDArray[np.int32]]:
        fraction_Y = fractions(quota_index_Q4, quota_tokens_Q, home_LE)
        for start in range(0, len(fraction_Y), _BLOCK):
            fraction_B = fraction_Y[start : start + _BLOCK]
            yield np.broadcast_to(fraction_B[:, None], (len(fraction_B), num_ranks))

    return SourceShares(num_ranks=num_ranks, blocks=blocks)


def _numbered(index_X4: NDArray[np.int32]) -> NDArray[np.int64]:
    """Number the (cell, expert) pairs from 0 in the order of the index; lines of one pair get the same number."""
    is_new_X = np.ones(len(index_X4), dtype=np.bool_)
    is_new_X[1:] = (index_X4[1:, :3] != index_X4[:-1, :3]).any(axis=1)
    return np.cumsum(is_new_X) - 1
