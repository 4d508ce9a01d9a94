"""LPLB: fixed replicas, and a linear program in every cell that shares tokens over the copies optimally.

deepseek-ai/LPLB (README, 2025) reorders and replicates with EPLB and solves the program on the GPU after the router.
Its replicas form a fixed graph of ranks. Here they are those of EPLB, as in SGLang's `--ep-dispatch-algorithm lp`,
which is no worse a start. HiGHS solves the program exactly.

M rows, L layers, E experts, R EP ranks, P copies of experts, X pieces.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Unsupported
from relibra.evaluation.assignment import Assignment, Known, from_pieces
from relibra.evaluation.baselines.eplb import first_copies, physical_experts
from relibra.planning.job import Cluster, Model

DECISION_US = 100.0
"""The published time of a solve within a node."""


def lplb(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Share tokens by linear program over the copies that EPLB makes for the step's own total loads.

    Raises:
        Unsupported: scipy is not installed.
    """
    logical_LP = physical_experts(load_MLE.sum(axis=0), model, cluster)
    slots_per_rank = logical_LP.shape[1] // cluster.num_ranks
    index, tokens = [], []
    for layer, logical_P in enumerate(logical_LP):
        # Two copies of an expert on one rank count as one.
        copy_P2 = np.unique(np.stack([logical_P, np.arange(len(logical_P)) // slots_per_rank], axis=1), axis=0)
        for row, load_LE in enumerate(load_MLE):
            tokens.append(share_by_program(load_LE[layer], copy_P2, cluster.num_ranks))
            place_P2 = np.full_like(copy_P2, [row, layer])
            index.append(np.concatenate([place_P2, copy_P2], axis=1))
    home_LE = first_copies(logical_LP, model, cluster)
    pieces = np.concatenate(index), np.concatenate(tokens)
    return from_pieces(*pieces, home_LE, len(load_MLE), Known.AHEAD, DECISION_US)


def share_by_program(load_E: NDArray[np.integer], copy_P2: NDArray[np.integer], num_ranks: int) -> NDArray[np.int64]:
    """Return the tokens of every copy (expert, rank) that minimise the slowest rank's tokens, up to rounding.

    Raises:
        Unsupported: scipy is not installed.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array, hstack
    except ImportError as error:
        raise Unsupported("the LPLB baseline needs scipy: pip install 'scipy>=1.11'") from error
    num_copies, index_P = len(copy_P2), np.arange(len(copy_P2))
    of_expert = coo_array((np.ones(num_copies), (copy_P2[:, 0], index_P)), shape=(len(load_E), num_copies))
    on_rank = coo_array((np.ones(num_copies), (copy_P2[:, 1], index_P)), shape=(num_ranks, num_copies))
    result = linprog(
        c=np.append(np.zeros(num_copies), 1.0),
        A_eq=hstack([of_expert, coo_array((len(load_E), 1))]).tocsr(),
        b_eq=load_E.astype(float),
        A_ub=hstack([on_rank, coo_array(-np.ones((num_ranks, 1)))]).tocsr(),
        b_ub=np.zeros(num_ranks),
        method="highs",
    )
    tokens_P: NDArray[np.int64] = np.floor(result.x[:-1] + 1e-6).astype(np.int64)
    missing_E = load_E.astype(np.int64)
    np.subtract.at(missing_E, copy_P2[:, 0], tokens_P)
    for copy, (expert, _) in enumerate(copy_P2):  # hand out the tokens that rounding left over
        extra = min(1, missing_E[expert])
        tokens_P[copy] += extra
        missing_E[expert] -= extra
    return tokens_P
