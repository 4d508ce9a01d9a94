"""UltraEP: homes stay, and every cell replicates its hot experts inside the node after the router has run.

Reimplements the quota planner of Dots-Infra/UltraEP (arXiv 2606.04101; `csrc/kernels/placement.cu` at commit 94cab09).
Given a limit on the slowest rank's tokens, the ranks above it hand over their excess, heaviest rank and heaviest expert
first. The excess of an expert goes to the rank with the most room that has a free slot and no copy of the expert yet.
The planner takes the first limit that works: 1 % above the mean, then two that are each 1 % of the heaviest rank
higher. There a replica must have an even share of what is left to hand over, however little that is. If no such limit
works, the planner searches for the lowest one at which every replica has 1024 tokens.

The original runs on GPUs only, and was not run beside this.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, S slots, X experts of a node, Y replicas.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known, from_pieces
from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster, Model

MIN_TOKENS = 1024
"""The fewest tokens of a replica in the search, by default."""
DECISION_US = 73.0
"""The published time is 67 to 78 us, for 256 experts on 64 ranks."""
_TOLERANCE_PERCENT = 1
"""How far above the mean the first limit is."""
_NUM_RAISED = 2
"""How often the limit is raised before the search."""
_NUM_PROBES = 4
"""The limits that a round of the search tries."""
_DIRECT_RANKS = 8
"""In larger NVLink domains, ranks pass on the weights of experts with many replicas."""
_RELAYED_FROM = 4
"""From this many replicas on, other ranks relay a rank's weights; 4, 5 and 6 take the same time (README)."""
_EVEN_SHARE = 0
"""Instead of a number of tokens: a replica must have an even share of what its rank has left to hand over."""


def ultraep(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Replicate in every cell; the homes are those of plain expert parallelism."""
    size, slots = cluster.gpus_per_node, cluster.redundant_slots
    assignment = replicate_in_nodes(
        load_MLE, model, cluster, lambda load_X: quota_replicas(load_X, size, slots, MIN_TOKENS)
    )
    return replace(assignment, most_sent=_RELAYED_FROM if size > _DIRECT_RANKS else None)


def replicate_in_nodes(
    load_MLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    replicas_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Assignment:
    """Return the assignment of a planner that runs after every router, and decides for one node of one cell.

    Args:
        load_MLE: the tokens of every cell.
        model: the model.
        cluster: the EP groups.
        replicas_of: returns the replicas of a node, int64 `[Y, 3]`: (expert, rank, tokens), both counted in the node.
    """
    home_LE = cluster.identity_placement(model)
    num_rows, num_layers, num_experts = load_MLE.shape
    per_node = num_experts // cluster.num_nodes
    pieces = []
    for row, layer, node in np.ndindex(num_rows, num_layers, cluster.num_nodes):
        load_X = load_MLE[row, layer, node * per_node : (node + 1) * per_node].astype(np.int64)
        replica_Y3 = replicas_of(load_X)
        np.subtract.at(load_X, replica_Y3[:, 0], replica_Y3[:, 2])
        expert_X = node * per_node + np.arange(per_node)
        for expert_Y, rank_Y, tokens_Y in (
            (expert_X, home_LE[layer, expert_X], load_X),
            (node * per_node + replica_Y3[:, 0], node * cluster.gpus_per_node + replica_Y3[:, 1], replica_Y3[:, 2]),
        ):
            place_Y = np.zeros_like(expert_Y)
            pieces.append(np.stack([place_Y + row, place_Y + layer, expert_Y, rank_Y, tokens_Y], axis=1))
    piece_X5 = np.concatenate(pieces)
    return from_pieces(piece_X5[:, :4], piece_X5[:, 4], home_LE, num_rows, Known.ROUTED, DECISION_US)


@compile_once
def quota_replicas(load_X: NDArray[np.int64], num_ranks: int, slots: int, min_tokens: int) -> NDArray[np.int64]:
    """Return one node's replicas in one cell, int64 `[Y, 3]`: (expert, rank, tokens). Experts come sorted by rank."""
    share = len(load_X) // num_ranks
    load_G = np.zeros(num_ranks, dtype=np.int64)
    for expert in range(len(load_X)):
        load_G[expert // share] += load_X[expert]
    if slots == 0 or num_ranks == 1:
        return np.zeros((0, 3), dtype=np.int64)
    lowest = -(-load_G.sum() // num_ranks)
    highest = max(load_G.max(), lowest)
    limit = -(-lowest * (100 + _TOLERANCE_PERCENT) // 100)
    for _ in range(1 + _NUM_RAISED):
        replica_Y3, is_reached = _hand_over(load_X, load_G, slots, _EVEN_SHARE, limit)
        if is_reached:
            return replica_Y3
        limit = min(highest, limit + max(1, -(-highest // 100)))
    replica_Y3, is_reached = _hand_over(load_X, load_G, slots, min_tokens, lowest)
    if is_reached:
        return replica_Y3
    lowest = min(lowest + 1, highest)
    while lowest < highest:
        span, too_low = highest - lowest, lowest - 1
        for probe in range(_NUM_PROBES):
            if span <= _NUM_PROBES:
                limit = lowest + min(probe, span - 1)
            else:
                limit = lowest + span * (probe + 1) // (_NUM_PROBES + 1)
            if _hand_over(load_X, load_G, slots, min_tokens, limit)[1]:
                highest = limit
                break
            too_low = limit
        lowest = too_low + 1
    return _hand_over(load_X, load_G, slots, min_tokens, lowest)[0]


@compile_once
def _hand_over(
    load_X: NDArray[np.int64], before_G: NDArray[np.int64], slots: int, min_tokens: int, limit: int
) -> tuple[NDArray[np.int64], bool]:
    """Return the replicas that bring all ranks down to the limit, and whether they do."""
    num_ranks = len(before_G)
    share = len(load_X) // num_ranks
    slack_G = np.maximum(limit - before_G, 0)
    held_GS = np.full((num_ranks, slots), -1, dtype=np.int64)
    used_G = np.zeros(num_ranks, dtype=np.int64)
    replica_Y3 = np.empty((num_ranks * slots, 3), dtype=np.int64)
    num_replicas = 0
    for source in np.argsort(-before_G, kind="mergesort"):
        excess = before_G[source] - limit
        for expert in source * share + np.argsort(-load_X[source * share : (source + 1) * share], kind="mergesort"):
            left = load_X[expert] - 1  # one token stays at home
            while excess > 0 and left > 0:
                best, num_open = -1, 0
                for rank in range(num_ranks):
                    if slack_G[rank] > 0 and used_G[rank] < slots and not (held_GS[rank] == expert).any():
                        num_open += 1
                        if best < 0 or slack_G[rank] > slack_G[best]:
                            best = rank
                if best < 0:
                    break
                tokens = min(excess, slack_G[best], left)
                if tokens < (-(-excess // num_open) if min_tokens == _EVEN_SHARE else min_tokens):
                    break
                replica_Y3[num_replicas] = np.array([expert, best, tokens])
                num_replicas += 1
                held_GS[best, used_G[best]] = expert
                used_G[best] += 1
                slack_G[best] -= tokens
                excess -= tokens
                left -= tokens
        if excess > 0:
            return replica_Y3[:num_replicas].copy(), False
    return replica_Y3[:num_replicas].copy(), True
