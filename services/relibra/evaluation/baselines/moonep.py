"""MoonEP: every rank of an NVLink domain computes equally many tokens in every cell, whatever the router chose.

Reimplements the planner of MoonshotAI/MoonEP, which Megatron-LM's pull request 7450 brings into HybridEP. Neither
source was available, so this follows the reference planner of MoonEP's tests in the fork zhumakhan/MoonEP
(`tests/planning_reference.py` at commit 4818969, lines 72 to 131). The rank with the most excess fills the rank with
the most room, up to the mean, until no rank has excess. So a rank receives experts from only one other rank. It has
slots for as many experts as it is home to (`epn`, README of the fork at 11713d2): weights and fp32 gradients, shared by
layers. Replicas stay in the NVLink domain.

Nobody has published how long its planner takes. It reads and writes what UltraEP's planner does, so it costs the same
here. Its weights travel after dispatch has begun (MoonEP issue 15), and hide as UltraEP's do.

M rows, L layers, E experts, N nodes, G ranks per node, X experts of a node, Y replicas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.baselines.ultraep import replicate_in_nodes
from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster, Model


def moonep(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Replicate in every cell up to perfect balance inside nodes; the homes are those of plain expert parallelism."""
    return replicate_in_nodes(load_MLE, model, cluster, lambda load_X: fill_ranks(load_X, cluster.gpus_per_node))


@compile_once
def fill_ranks(load_X: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
    """Return one node's replicas in one cell, int64 `[Y, 3]`: (expert, rank, tokens). Experts come sorted by rank."""
    share = len(load_X) // num_ranks
    excess_G = np.zeros(num_ranks, dtype=np.int64)
    for expert in range(len(load_X)):
        excess_G[expert // share] += load_X[expert]
    excess_G -= -(-load_X.sum() // num_ranks)
    left_X = load_X.copy()
    replica_Y3 = np.empty((len(load_X) + num_ranks, 3), dtype=np.int64)
    num_replicas = 0
    quota_GG = np.zeros((num_ranks, num_ranks), dtype=np.int64)
    while excess_G.max() > 0:
        giver, taker = excess_G.argmax(), excess_G.argmin()
        quota_GG[giver, taker] = -excess_G[taker]
        excess_G[giver] += excess_G[taker]
        excess_G[taker] = 0
    for home in range(num_ranks):
        while quota_GG[home].max() > 0:
            target = int(quota_GG[home].argmax())
            expert = home * share + int(left_X[home * share : (home + 1) * share].argmax())
            tokens = min(left_X[expert], quota_GG[home, target])
            if tokens == 0:
                break
            replica_Y3[num_replicas] = np.array([expert, target, tokens])
            num_replicas += 1
            left_X[expert] -= tokens
            quota_GG[home, target] -= tokens
    return replica_Y3[:num_replicas].copy()
