"""Replicas and quotas of every cell: which hot experts are copied to which ranks of their node, with how many tokens.

M rows, L layers, E experts, Y replicas of a layer, Q quotas.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled, for_each_layer
from relibra.planning.job import Cluster
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.by_time import replicate_by_time
from relibra.planning.replicas.layer_replicas import KnownReplicas, LayerReplicas, balance_layer, worth_their_cell
from relibra.planning.traffic import LayerTraffic, Traffic

FREE = ReplicaPrice()
"""The price where replicas cost nothing and only balance counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """How many tokens of every expert each rank computes.

    The home of an expert has no line where replicas take over all of its tokens.
    """

    index_Q4: NDArray[np.int32]
    """(row, layer, expert, rank), sorted and unique."""
    tokens_Q: NDArray[np.int64]
    """At least 1 each."""
    crossing_Q: NDArray[np.int64] | None = None
    """How many tokens of each replica come from other nodes; homes have 0 here, and get what replicas leave.
    None: it does not matter where tokens come from."""


ChooseReplicas = Callable[[NDArray[np.int64], NDArray[np.int32], Cluster, ReplicaPrice], LayerReplicas]
"""Chooses the replicas of one layer from its loads `[M, E]` and home ranks `[E]`."""


def replicate(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    cluster: Cluster,
    price: ReplicaPrice = FREE,
    num_threads: int = 1,
    choose: ChooseReplicas | None = None,
    traffic: Traffic | None = None,
    known: KnownReplicas | None = None,
) -> tuple[Quotas, str]:
    """Choose replicas and quotas under a placement; return them and why.

    Args:
        load_MLE: tokens of every expert in every cell.
        home_LE: the placement.
        cluster: nodes, ranks and slots.
        price: what replicas cost.
        num_threads: threads that plan layers; the result is the same for any number.
        choose: chooses the replicas of one layer; `replicate_layer` by default.
        traffic: where token copies come from and what dispatch costs; nothing by default. Only `replicate_layer`
            counts it.
        known: what `reorder` found with the same arguments; nothing by default. `choose` does not use it.
    """

    def replicate_one(layer: int) -> LayerReplicas:
        if choose is not None:
            return choose(load_MLE[:, layer], home_LE[layer], cluster, price)
        found = None if known is None else known.of(layer, home_LE[layer])
        if found is not None:
            return found
        of_layer = None if traffic is None else traffic.layer(layer)
        return replicate_layer(load_MLE[:, layer], home_LE[layer], cluster, price, of_layer)

    layers = for_each_layer(replicate_one, len(home_LE), num_threads)
    crossing = [np.zeros_like(layer.tokens_Y) if layer.crossing_Y is None else layer.crossing_Y for layer in layers]
    index_Q4, tokens_Q, crossing_Q = _merge(
        load_MLE,
        home_LE,
        np.stack([layer.end_M for layer in layers]),
        np.cumsum([0] + [len(layer.tokens_Y) for layer in layers]),
        np.concatenate([layer.index_Y2 for layer in layers]),
        np.concatenate([layer.tokens_Y for layer in layers]),
        np.concatenate(crossing),
    )
    num_replicas = sum(len(layer.tokens_Y) for layer in layers)
    moved = sum(int(layer.tokens_Y.sum()) for layer in layers)
    num_cells, share = load_MLE[..., 0].size, moved / max(int(load_MLE.sum()), 1)
    reason = f"{num_replicas / num_cells:.1f} replicas per cell compute {share:.1%} of the tokens"
    if num_replicas and price.least > 1:
        reason += f", each at least {price.least} tokens"
    has_sources = any(layer.crossing_Y is not None for layer in layers)
    return Quotas(index_Q4=index_Q4, tokens_Q=tokens_Q, crossing_Q=crossing_Q if has_sources else None), reason


def replicate_layer(
    load_ME: NDArray[np.int64],
    home_E: NDArray[np.int32],
    cluster: Cluster,
    price: ReplicaPrice = FREE,
    traffic: LayerTraffic | None = None,
) -> LayerReplicas:
    """Choose the replicas of one layer, for known loads: those that `balance_layer` finds, where they are worth it.

    Where dispatch has a price (`traffic`), it counts as `replicate_by_time` says.
    """
    if traffic is not None:
        return replicate_by_time(load_ME, home_E, cluster, price, traffic)
    found = balance_layer(load_ME, home_E, cluster, price.least, price.of_busiest)
    return worth_their_cell(found, load_ME, home_E, cluster, price.of_cell)


@compiled
def _merge(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    end_LM: NDArray[np.int64],
    first_L: NDArray[np.int64],
    index_Y2: NDArray[np.int32],
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return home and replica quotas of all cells in order; `first_L` says where the replicas of a layer begin."""
    num_rows, num_layers, num_experts = load_MLE.shape
    num_quotas = len(tokens_Y)
    for row in range(num_rows):
        for layer in range(num_layers):
            for expert in range(num_experts):
                num_quotas += load_MLE[row, layer, expert] > 0
    index_Q4 = np.empty((num_quotas, 4), dtype=np.int32)
    tokens_Q = np.empty(num_quotas, dtype=np.int64)
    crossing_Q = np.zeros(num_quotas, dtype=np.int64)
    kept_E = np.empty(num_experts, dtype=np.int64)
    first_E = np.empty(num_experts, dtype=np.int64)  # the replicas of an expert are a list by rising rank
    next_Y = np.empty(len(tokens_Y), dtype=np.int64)
    written = 0
    for row in range(num_rows):
        for layer in range(num_layers):
            kept_E[:] = load_MLE[row, layer]
            first_E[:] = -1
            begin = first_L[layer] + (end_LM[layer, row - 1] if row > 0 else 0)
            for replica in range(begin, first_L[layer] + end_LM[layer, row]):
                expert = index_Y2[replica, 0]
                kept_E[expert] -= tokens_Y[replica]
                before, after = np.int64(-1), first_E[expert]
                while after >= 0 and index_Y2[after, 1] < index_Y2[replica, 1]:
                    before, after = after, next_Y[after]
                next_Y[replica] = after
                if before < 0:
                    first_E[expert] = replica
                else:
                    next_Y[before] = replica
            for expert in range(num_experts):
                home, replica = home_LE[layer, expert], first_E[expert]
                home_is_left = kept_E[expert] > 0
                while home_is_left or replica >= 0:
                    if home_is_left and (replica < 0 or home < index_Y2[replica, 1]):
                        rank, tokens = home, kept_E[expert]
                        home_is_left = False
                    else:
                        rank, tokens = index_Y2[replica, 1], tokens_Y[replica]
                        crossing_Q[written] = crossing_Y[replica]
                        replica = next_Y[replica]
                    index_Q4[written, 0] = row
                    index_Q4[written, 1] = layer
                    index_Q4[written, 2] = expert
                    index_Q4[written, 3] = rank
                    tokens_Q[written] = tokens
                    written += 1
    return index_Q4[:written], tokens_Q[:written], crossing_Q[:written]
