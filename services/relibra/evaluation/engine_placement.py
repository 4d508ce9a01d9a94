"""Where a rollout engine should place experts and their copies, for routing like that of a trace.

Unlike a trainer, an engine keeps one placement for a long time, fills all slots, and spreads the tokens of an expert
evenly over its copies. So total loads decide the copies: the next copy goes to the expert with the most tokens per
copy, which makes the largest load of a copy the smallest possible. `reorder` then places the copies as if they were
experts, and copies of one expert that share a rank change places with others.

M micro-batches, L layers, E experts, P physical experts, R ranks, S slots of a rank.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.baselines.eplb import copies_of
from relibra.planning.job import Cluster
from relibra.planning.load import imbalance
from relibra.planning.placement.reorder import reorder
from relibra.planning.prices import FREE_MOVES


def place_copies(load_MLE: NDArray[np.int64], num_copies: int, cluster: Cluster) -> NDArray[np.int32]:
    """Return the expert of every physical expert, int32 `[L, P]`, those of each rank side by side.

    Args:
        load_MLE: token copies of every expert.
        num_copies: P, all copies of experts, with the first copy of every expert.
        cluster: the ranks of the engine.

    Raises:
        InvalidInput: the ranks do not divide `num_copies`, there are fewer copies than experts, or there are more
            copies than different ranks can hold.
    """
    num_experts = load_MLE.shape[2]
    if num_copies % cluster.num_ranks:
        raise InvalidInput.of(
            "--ep-size and --redundant-experts",
            expected=f"{num_experts} experts and the redundant ones to be a multiple of {cluster.num_ranks} ranks",
            got=num_copies,
        )
    if not num_experts <= num_copies <= num_experts * cluster.num_ranks:
        raise InvalidInput.of(
            "--redundant-experts",
            expected=f"at most {num_experts * (cluster.num_ranks - 1)}, one copy of each expert on every rank",
            got=num_copies - num_experts,
        )
    load_LE = load_MLE.sum(axis=0)
    copies = [np.sort(copies_of(load_E, num_copies, most=cluster.num_ranks)) for load_E in load_LE]
    expert_LP = np.stack(copies).astype(np.int32)
    cluster = replace(cluster, redundant_slots=0)
    start_LP = np.tile(np.arange(num_copies, dtype=np.int32) // (num_copies // cluster.num_ranks), (len(expert_LP), 1))
    load_MLP = _load_of_copies(load_MLE, expert_LP)
    rank_LP, _ = reorder(load_MLP, start_LP, start_LP, cluster, hysteresis=FREE_MOVES)
    expert_LP = np.take_along_axis(expert_LP, np.argsort(rank_LP, axis=1, kind="stable"), axis=1)
    for expert_P, load_E in zip(expert_LP, load_LE, strict=True):
        _separate(expert_P.reshape(cluster.num_ranks, -1), load_E / np.bincount(expert_P))
    return expert_LP


def imbalance_of(load_MLE: NDArray[np.int64], expert_LP: NDArray[np.int32], num_ranks: int) -> float:
    """Return the imbalance of ranks whose copies share the tokens of their expert evenly."""
    load_MLP = _load_of_copies(load_MLE, expert_LP)
    return imbalance(load_MLP.reshape(*load_MLP.shape[:2], num_ranks, -1).sum(axis=3))


def trivial(num_layers: int, num_experts: int, num_copies: int) -> NDArray[np.int32]:
    """Return the placement of an engine that knows no loads: all experts in order, and the first ones again."""
    return np.tile(np.arange(num_copies, dtype=np.int32) % np.int32(num_experts), (num_layers, 1))


def _separate(expert_RS: NDArray[np.int32], copy_load_E: NDArray[np.float64]) -> None:
    """Swap, in place, copies of one expert that share a rank with other copies of about as many tokens."""
    for rank, of_rank in enumerate(expert_RS):
        for slot, expert in enumerate(of_rank):
            if expert in of_rank[:slot]:
                has_it_R1 = (expert_RS == expert).any(axis=1, keepdims=True)
                is_free_RS = ~has_it_R1 & ~np.isin(expert_RS, of_rank)
                far_RS = np.where(is_free_RS, np.abs(copy_load_E[expert_RS] - copy_load_E[expert]), np.inf)
                other = np.unravel_index(far_RS.argmin(), far_RS.shape)
                if is_free_RS[other]:
                    expert_RS[rank, slot], expert_RS[other] = expert_RS[other], expert


def _load_of_copies(load_MLE: NDArray[np.int64], expert_LP: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the tokens of every copy, rounded up."""
    num_LE = np.stack([np.bincount(expert_P, minlength=load_MLE.shape[2]) for expert_P in expert_LP])
    load_MLE = -(-load_MLE // num_LE)
    return np.take_along_axis(load_MLE, np.broadcast_to(expert_LP, (len(load_MLE), *expert_LP.shape)), axis=2)
