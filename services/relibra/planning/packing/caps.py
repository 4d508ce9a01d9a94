"""How much rows, nodes and ranks may hold while packing: about what they hold in the schedule that it begins from.

S sequences, M rows, R EP ranks, N nodes. An axis named 2 is (tokens, attention work).
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster
from relibra.planning.packing.rows import Caps
from relibra.planning.schedule import Schedule

SLACK = Fraction(1, 10)
"""How far the slowest source rank of a micro-batch may be above that of the schedule that packing begins from, in
tokens and in attention work. The tokens of a row may leave the range of that schedule by half of this, as a part of the
mean row."""


def sizes_MR(schedule: Schedule, size_S2: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    """Sum the sizes of sequences by row and source rank: `[M, R, ...]`."""
    size_MR = np.zeros((schedule.num_rows(cluster), cluster.num_ranks, *size_S2.shape[1:]), dtype=np.int64)
    np.add.at(size_MR, (schedule.row_S, schedule.source_rank_S), size_S2)
    return size_MR


def with_slack(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sizes that are larger by `SLACK`, rounded down."""
    return number + number * SLACK.numerator // SLACK.denominator


def caps_of(schedule: Schedule, size_S2: NDArray[np.int64], cluster: Cluster, token_budget: int) -> Caps:
    """Return what rows, nodes and ranks may hold so that lengths stay about as balanced as in `schedule`."""
    size_MR2 = sizes_MR(schedule, size_S2, cluster)
    rank_M2 = with_slack(size_MR2.max(axis=1))
    rank_M2[:, 0] = np.minimum(rank_M2[:, 0], token_budget)
    tokens_MN = size_MR2[..., 0].reshape(len(size_MR2), cluster.num_nodes, -1).sum(axis=-1)
    tokens_M = tokens_MN.sum(axis=1)
    margin = int(tokens_M.mean()) * SLACK.numerator // (2 * SLACK.denominator)
    return Caps(
        rank_M2=rank_M2,
        node_M=with_slack(tokens_MN.max(axis=1)),
        row_2=np.array([tokens_M.min() - margin, tokens_M.max() + margin]),
    )
