"""Which source rank a sequence gets: one on the node that is home to most of its experts, if there is room.

S sequences, M rows, R EP ranks, N nodes, C (row, source rank) pairs. An axis named 2 is (tokens, attention work).
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once, next_random
from relibra.planning.packing.changes import Changes
from relibra.planning.packing.rows import Caps

_PROPOSALS_PER_SEQUENCE = 2000


def keep_local(
    local_SN: NDArray[np.int64],
    size_S2: NDArray[np.int64],
    cell_S: NDArray[np.int64],
    gpus_per_node: int,
    caps: Caps,
    changes: Changes,
    seed: int,
) -> NDArray[np.int64]:
    """Move sequences between the ranks of their row, so that fewer token copies leave their node.

    Args:
        local_SN: token copies of every sequence for experts whose home is on each node.
        size_S2: tokens and attention work of every sequence.
        cell_S: the (row, source rank) of every sequence, as row * R + rank.
        gpus_per_node: ranks of a node.
        caps: what ranks and nodes may hold.
        changes: what the search may change; rows stay in any case.
        seed: seed of the random proposals.

    Returns:
        The new (row, source rank) of every sequence. Rows are unchanged, and no more token copies leave their node than
        before.
    """
    num_nodes = local_SN.shape[1]
    if num_nodes == 1 or not len(cell_S):
        return cell_S
    num_ranks = num_nodes * gpus_per_node
    order_S = np.argsort(cell_S // num_ranks, kind="stable")
    first_M = np.searchsorted(cell_S[order_S] // num_ranks, np.arange(len(caps.node_M) + 1))
    return _keep_local(
        local_SN,
        size_S2,
        cell_S,
        order_S,
        first_M,
        gpus_per_node,
        caps.rank_M2,
        caps.node_M,
        changes.source_X,
        changes.may_move,
        seed % (1 << 63),
        min(_PROPOSALS_PER_SEQUENCE * len(cell_S), changes.max_work),
    )


@compile_once
def _keep_local(
    local_SN: NDArray[np.int64],
    size_S2: NDArray[np.int64],
    start_S: NDArray[np.int64],
    order_S: NDArray[np.int64],
    first_M: NDArray[np.int64],
    gpus_per_node: int,
    cap_M2: NDArray[np.int64],
    node_cap_M: NDArray[np.int64],
    source_X: NDArray[np.int64],
    may_move: bool,
    seed: int,
    num_proposals: int,
) -> NDArray[np.int64]:
    num_sequences, num_nodes = local_SN.shape
    num_ranks = num_nodes * gpus_per_node
    cell_S, best_S = start_S.copy(), start_S.copy()
    size_C2 = np.zeros((len(cap_M2) * num_ranks, 2), dtype=np.int64)
    tokens_MN = np.zeros((len(cap_M2), num_nodes), dtype=np.int64)
    nothing_2 = np.zeros(2, dtype=np.int64)
    apart = 0
    for sequence in range(num_sequences):
        cell = cell_S[sequence]
        size_C2[cell] += size_S2[sequence]
        tokens_MN[cell // num_ranks, cell % num_ranks // gpus_per_node] += size_S2[sequence, 0]
        apart += local_SN[sequence].max() - local_SN[sequence].min()
    gain, best = 0, 0
    state = np.array([seed], dtype=np.uint64)
    for proposal in range(num_proposals):
        bits = next_random(state)
        one = np.int64((bits >> np.uint64(32)) * np.uint64(num_sequences) >> np.uint64(32))
        a = cell_S[one]
        row = a // num_ranks
        # One proposal in four moves the sequence to a rank of its row; the others swap it with a sequence of the row.
        is_move = may_move and bits & np.uint64(3) == 0
        span = len(source_X) if is_move else first_M[row + 1] - first_M[row]
        drawn = np.int64((bits & np.uint64(0xFFFFFFFC)) * np.uint64(span) >> np.uint64(32))
        other = one if is_move else order_S[first_M[row] + drawn]
        b = row * num_ranks + source_X[drawn] if is_move else cell_S[other]
        node_a, node_b = a % num_ranks // gpus_per_node, b % num_ranks // gpus_per_node
        if node_a == node_b:
            continue
        change = local_SN[one, node_b] - local_SN[one, node_a]
        comes_2 = nothing_2
        if not is_move:
            change += local_SN[other, node_a] - local_SN[other, node_b]
            comes_2 = size_S2[other]
        left = num_proposals - proposal
        if change < -(apart // num_sequences * left // num_proposals * left // num_proposals // 4):
            continue
        fits = True
        for kind in range(2):
            more = comes_2[kind] - size_S2[one, kind]
            fits &= size_C2[a, kind] + more <= cap_M2[row, kind] and size_C2[b, kind] - more <= cap_M2[row, kind]
        more = comes_2[0] - size_S2[one, 0]
        fits &= tokens_MN[row, node_a] + more <= node_cap_M[row] and tokens_MN[row, node_b] - more <= node_cap_M[row]
        if not fits:
            continue
        size_C2[a] += comes_2 - size_S2[one]
        size_C2[b] -= comes_2 - size_S2[one]
        tokens_MN[row, node_a] += more
        tokens_MN[row, node_b] -= more
        if not is_move:
            cell_S[other] = a
        cell_S[one] = b
        gain += change
        if gain > best:
            best = gain
            best_S[:] = cell_S
    return best_S
