"""How much rows, nodes and ranks may hold while packing: about what they hold in the schedule that it begins from.

S sequences, M rows, R EP ranks, N nodes. An axis named 2 is (tokens, attention work).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.schedule import Schedule

NO_LIMIT = 1 << 62
SLACK = Fraction(1, 10)
"""How far the slowest source rank of a micro-batch may be above that of the schedule that packing begins from, in
tokens and in attention work. The tokens of a row may leave the range of that schedule by half of this, as a part of the
mean row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How many tokens and how much attention work rows may hold."""

    rank_M2: NDArray[np.int64]
    """The most tokens and attention work of a source rank in each row."""
    node_M: NDArray[np.int64]
    """The most tokens of all source ranks of a node in each row."""
    row_2: NDArray[np.int64]
    """The fewest and the most tokens of a row; this axis is (fewest, most)."""
    group_copies: int = NO_LIMIT
    """The most token copies of all layers that a node, or a rank without slots, should compute in a row to stay within
    memory. A schedule may start above this limit."""


def sizes_MR(schedule: Schedule, size_S2: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    """Sum the sizes of sequences by row and source rank: `[M, R, ...]`."""
    size_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks, *size_S2.shape[1:]), dtype=np.int64)
    np.add.at(size_MR, (schedule.row_S, schedule.source_rank_S), size_S2)
    return size_MR


def most_tokens(schedule: Schedule, length_S: NDArray[np.int64], cluster: Cluster) -> int:
    """Return the tokens of the fullest source rank in a micro-batch: the token budget that a schedule needs."""
    return int(sizes_MR(schedule, length_S[:, None], cluster).max())


def with_slack(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sizes that are larger by `SLACK`, rounded down."""
    return number + number * SLACK.numerator // SLACK.denominator


def caps_of(
    schedule: Schedule,
    size_S2: NDArray[np.int64],
    cluster: Cluster,
    token_budget: int | None,
    group_copies: int = NO_LIMIT,
    *,
    lacks_memory: bool = False,
) -> Caps:
    """Return what rows, nodes and ranks may hold so that lengths stay about as balanced as in `schedule`.

    If `schedule` lacks memory, every row may hold as much as its fullest row, so that small rows relieve large ones.
    """
    size_MR2 = sizes_MR(schedule, size_S2, cluster)
    rank_M2 = with_slack(size_MR2.max(axis=1))
    budget = size_MR2[..., 0].max() if token_budget is None else token_budget
    rank_M2[:, 0] = np.minimum(rank_M2[:, 0], budget)
    tokens_MN = size_MR2[..., 0].reshape(len(size_MR2), cluster.num_nodes, -1).sum(axis=-1)
    tokens_M, node_M = tokens_MN.sum(axis=1), tokens_MN.max(axis=1)
    if lacks_memory:
        rank_M2[:], node_M[:] = rank_M2.max(axis=0), node_M.max()
    margin = int(tokens_M.mean()) * SLACK.numerator // (2 * SLACK.denominator)
    return Caps(
        rank_M2=rank_M2,
        node_M=with_slack(node_M),
        row_2=np.array([tokens_M.min() - margin, tokens_M.max() + margin]),
        group_copies=group_copies,
    )
