"""What ranks compute and send in every cell, whatever machine they are.

The times of a step for many machines, or for many values of a constant, share this part.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, N source nodes, Q quotas, Y replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.dispatch_time import copies_of, even_copies
from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of all cells of a step."""

    copies_M: NDArray[np.int64]
    """The token copies of each row."""
    place_Q: NDArray[np.int64]
    """The flat index into `shape` of every expert that a rank computes in a cell."""
    tokens_Q: NDArray[np.float64]
    """The tokens of each of these experts there, above 0."""
    shape: tuple[int, int, int]
    """(rows, layers, ranks). Equal ranks may be counted once."""
    copies_MLNR: NDArray[np.float64]
    """The token copies by source node and computing rank."""
    weights_inside_ML: NDArray[np.int64]
    """The most experts whose weights one rank sends or receives for replicas inside its node."""
    weights_across_ML: NDArray[np.int64]
    """The same between nodes."""


def work_of(assignment: Assignment, load: StepLoad, cluster: Cluster) -> Work:
    """Return the work of the cells of `load` under an assignment."""
    row_Q, layer_Q, _, rank_Q = assignment.index_Q4.T.astype(np.int64)
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    inside_ML, across_ML = (_most_weights_ML(assignment, cluster, inside=inside) for inside in (True, False))
    if assignment.copies_stay:
        for weights_ML in (inside_ML, across_ML):
            weights_ML.reshape(cluster.num_ep_groups, -1, shape[1])[:, 1:] = 0
    return Work(
        copies_M=_copies_M(load),
        place_Q=np.ravel_multi_index((row_Q, layer_Q, rank_Q), shape),
        tokens_Q=assignment.tokens_Q.astype(np.float64),
        shape=shape,
        copies_MLNR=copies_of(assignment, load, cluster),
        weights_inside_ML=inside_ML,
        weights_across_ML=across_ML,
    )


def even_work(load: StepLoad, num_experts: int, cluster: Cluster) -> Work:
    """Return the work of the cells of `load` if the router spread its tokens evenly over all experts."""
    expert_tokens_ML = load.load_MLE.sum(axis=-1) / num_experts
    num_rows, num_layers = expert_tokens_ML.shape
    per_rank = num_experts // cluster.num_ranks
    filled_Q = np.repeat(np.flatnonzero(expert_tokens_ML), per_rank)
    return Work(
        copies_M=_copies_M(load),
        place_Q=filled_Q,
        tokens_Q=expert_tokens_ML.ravel()[filled_Q],
        shape=(num_rows, num_layers, 1),
        copies_MLNR=even_copies(load, cluster),
        weights_inside_ML=np.zeros((num_rows, num_layers), dtype=np.int64),
        weights_across_ML=np.zeros((num_rows, num_layers), dtype=np.int64),
    )


def _copies_M(load: StepLoad) -> NDArray[np.int64]:
    copies_M: NDArray[np.int64] = load.load_MLE[:, 0].sum(axis=-1)
    return copies_M


def _most_weights_ML(assignment: Assignment, cluster: Cluster, *, inside: bool) -> NDArray[np.int64]:
    """Return the number of weights that the rank sends or receives which sends or receives the most."""
    row_Y, layer_Y, expert_Y, to_Y = assignment.index_Q4[assignment.is_replica_Q].T
    from_Y = assignment.home_LE[layer_Y, expert_Y]
    is_link_Y = (from_Y // cluster.gpus_per_node == to_Y // cluster.gpus_per_node) == inside
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    most_ML = np.zeros(shape[:2], dtype=np.int64)
    for end_Y, limit in ((from_Y, assignment.most_sent), (to_Y, None)):
        place_Y = np.ravel_multi_index((row_Y, layer_Y, end_Y), shape)[is_link_Y]
        num_MLR = np.bincount(place_Y, minlength=int(np.prod(shape))).reshape(shape)
        most_ML = np.maximum(most_ML, np.minimum(num_MLR.max(axis=-1), limit or len(from_Y)))
    return most_ML
