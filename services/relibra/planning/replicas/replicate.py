"""Replicas of every cell: which hot experts are copied to which ranks of their node.

M rows, L layers, E experts, Y replicas.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import for_each_layer
from relibra.planning.job import Cluster
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.by_time import replicate_by_time
from relibra.planning.replicas.layer_replicas import KnownReplicas, LayerReplicas, balance_layer, worth_their_cell
from relibra.planning.traffic import LayerTraffic, Traffic

FREE = ReplicaPrice()
"""The price where replicas cost nothing and only balance counts."""


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
) -> tuple[NDArray[np.int32], str]:
    """Choose replicas under a placement; return (row, layer, expert, rank) of each, `[Y, 4]` in order, and why.

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
        replicas = None if known is None else known.of(layer, home_LE[layer])
        if replicas is not None:
            return replicas
        of_layer = None if traffic is None else traffic.layer(layer)
        return replicate_layer(load_MLE[:, layer], home_LE[layer], cluster, price, of_layer)

    layers = for_each_layer(replicate_one, len(home_LE), num_threads)
    index_Y4 = _in_order(layers)
    reason = f"{len(index_Y4) / load_MLE[..., 0].size:.1f} replicas per cell"
    if len(index_Y4) and price.least > 1:
        reason += f", each of at least {price.least} tokens when it was chosen"
    return index_Y4, reason


def in_all_rows(index_Y4: NDArray[np.int32], num_rows: int) -> NDArray[np.int32]:
    """Return the replicas of the first row in every row."""
    first_Y4 = index_Y4[index_Y4[:, 0] == 0]
    all_Y4 = np.tile(first_Y4, (num_rows, 1))
    all_Y4[:, 0] = np.repeat(np.arange(num_rows, dtype=np.int32), len(first_Y4))
    return all_Y4


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
    replicas = balance_layer(load_ME, home_E, cluster, price.least, price.of_busiest)
    return worth_their_cell(replicas, load_ME, home_E, cluster, price.of_cell)


def _in_order(layers: Sequence[LayerReplicas]) -> NDArray[np.int32]:
    """Return (row, layer, expert, rank) of the replicas of all layers, sorted."""
    index_Y4 = np.concatenate(
        [
            np.stack(
                [
                    np.repeat(np.arange(len(of_layer.end_M)), np.diff(of_layer.end_M, prepend=0)),
                    np.full(len(of_layer.index_Y2), layer),
                    *of_layer.index_Y2.T,
                ],
                axis=1,
            )
            for layer, of_layer in enumerate(layers)
        ]
    ).astype(np.int32)
    return index_Y4[np.lexsort(index_Y4.T[::-1])]
