"""Rename the ranks of a placement so that as many experts as possible stay where they were.

Ranks are alike, so their names are free. Without renaming, published placements would pay for moves that only exchange
the names of ranks.

L layers, E experts, R EP ranks, P groups.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.planning.job import Cluster


def rename(assignment: Assignment, previous_LE: NDArray[np.int32], cluster: Cluster) -> Assignment:
    """Return the assignment with nodes and ranks of each layer named after the former homes of most experts there."""
    name_LR = np.stack(
        [
            _names(home_E, previous_E, cluster)
            for home_E, previous_E in zip(assignment.home_LE, previous_LE, strict=True)
        ]
    )
    index_Q4 = assignment.index_Q4.copy()
    index_Q4[:, 3] = name_LR[index_Q4[:, 1], index_Q4[:, 3]]
    home_LE = np.take_along_axis(name_LR, assignment.home_LE.astype(np.int64), axis=1).astype(np.int32)
    return replace(assignment, index_Q4=index_Q4, home_LE=home_LE)


def _names(home_E: NDArray[np.int32], previous_E: NDArray[np.int32], cluster: Cluster) -> NDArray[np.int32]:
    size, num_ranks = cluster.gpus_per_node, cluster.num_ranks
    overlap_RR = np.bincount(home_E.astype(np.int64) * num_ranks + previous_E, minlength=num_ranks**2)
    overlap_NGNG = overlap_RR.reshape(cluster.num_nodes, size, cluster.num_nodes, size)
    name_R = np.empty(num_ranks, dtype=np.int32)
    for node, name in enumerate(_match(overlap_NGNG.sum(axis=(1, 3)))):
        name_R[node * size : (node + 1) * size] = name * size + _match(overlap_NGNG[node, :, name])
    return name_R


def _match(overlap_PP: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a new name for every group: pairs with the largest overlap match first."""
    num_groups = len(overlap_PP)
    name_P = np.full(num_groups, -1)
    for pair in np.argsort(-overlap_PP, axis=None, kind="stable"):
        group, name = divmod(int(pair), num_groups)
        if name_P[group] < 0 and name not in name_P:
            name_P[group] = name
    return name_P
