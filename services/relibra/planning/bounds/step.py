"""A lower bound on the slowest ranks of a step under any placement: reordering cannot get below it.

Cut the R ranks into P groups of `a` ranks, each inside one node. Every group is home to Y = E/P experts. By the
pigeonhole principle, some group is home to at least k + 1 of the k*P + 1 largest experts of a cell. The experts of that
group weigh at least as much as the k + 1 smallest of those and the Y - k - 1 smallest of all. At most (G - a) * slots
of its experts can leave the group in replicas. The rest is computed by `a` ranks, and one of them computes at least the
mean. With k = 0 and a = G this says that the G ranks of one node share the largest expert. Besides, the slowest rank is
never below the mean of all R ranks.

All rows of a layer share one placement. Where nothing can leave (a = G, or no slots), the argument also holds for the
sum of the rows' loads, and bounds the sum of their slowest ranks.

M rows, L layers, E experts, R EP ranks, G ranks per node, P groups of ranks, Y experts of a group, K values of k.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster


def step_bound_L(load_MLE: NDArray[np.int64], cluster: Cluster) -> NDArray[np.int64]:
    """Return tokens of the slowest ranks, summed over rows, that no plan of any placement goes below; int64 `[L]`."""
    return np.array([_bound_layer(load_ME, cluster) for load_ME in load_MLE.transpose(1, 0, 2)], dtype=np.int64)


def _bound_layer(load_ME: NDArray[np.int64], cluster: Cluster) -> int:
    num_gpus, num_experts = cluster.gpus_per_node, load_ME.shape[-1]
    running_ME, running_E = _running(load_ME), _running(load_ME.sum(axis=0))
    cell_M, step = -(-running_ME[:, -1] // cluster.num_ranks), 0
    for num_grouped in (size for size in range(1, num_gpus + 1) if num_gpus % size == 0):
        num_groups = cluster.num_ranks // num_grouped
        can_leave = (num_gpus - num_grouped) * cluster.redundant_slots
        if can_leave < num_experts // num_groups:
            cell_M = np.maximum(cell_M, -(-_stays(running_ME, num_groups, can_leave) // num_grouped))
        if not can_leave:
            step = max(step, -(-int(_stays(running_E, num_groups, 0)) // num_grouped))
    return max(step, int(cell_M.sum()))


def _running(load_xE: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of the i largest loads, for i from 0 to E."""
    running = np.zeros((*load_xE.shape[:-1], load_xE.shape[-1] + 1), dtype=np.int64)
    np.cumsum(-np.sort(-load_xE, axis=-1), axis=-1, out=running[..., 1:])
    return running


def _stays(running_xE: NDArray[np.int64], num_groups: int, can_leave: int) -> NDArray[np.int64]:
    """Return a number of tokens that some group of ranks cannot hand over: the largest such number over all k."""
    num_experts = running_xE.shape[-1] - 1
    per_group = num_experts // num_groups
    k_K = np.arange(per_group)
    end_K = k_K * num_groups + 1
    # The largest experts leave first: those of the k + 1 among the largest, then the others.
    first_K = np.minimum(end_K - k_K - 1 + can_leave, end_K)
    num_small_K = per_group - np.maximum(k_K + 1, can_leave)
    among_xK = running_xE[..., end_K] - running_xE[..., first_K]
    others_xK = running_xE[..., -1:] - running_xE[..., num_experts - num_small_K]
    stays: NDArray[np.int64] = (among_xK + others_xK).max(axis=-1)
    return stays
