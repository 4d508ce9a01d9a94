"""Replicas where dispatch costs time: choices are judged by the modelled time of their cells.

The time of a cell, in tokens of its slowest rank, is

    tokens of the slowest rank + price x the most copies that one adapter sends or receives + the price of replicas

Replicas stay on the node of their home, so the same copies leave and enter a node with any of them. Where the ranks of
a node share what enters it, dispatch is the same for all choices, and tokens alone decide.

In an all-to-all, a replica also takes copies off its home's adapter: those of its tokens that come from other nodes.
So two choices are made in every cell: one balances the tokens of ranks, the other the copies that enter ranks. What
comes of either is decided when the router has run (`planning.split`), so they are judged by that. A cell takes the
faster choice, or no replicas if that is faster still.

M rows, E experts, R EP ranks, Y replicas, K choices.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compile_once
from relibra.planning.job import Cluster
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.layer_replicas import LayerReplicas, balance_layer, worth_their_cell
from relibra.planning.split import split_step
from relibra.planning.traffic import UNIT_BITS, LayerTraffic


def replicate_by_time(
    load_ME: NDArray[np.int64], home_E: NDArray[np.int32], cluster: Cluster, price: ReplicaPrice, traffic: LayerTraffic
) -> LayerReplicas:
    """Choose the replicas of one layer where dispatch has a price; no cell is slower than without replicas.

    Args:
        load_ME: tokens of every expert.
        home_E: the placement.
        cluster: nodes, ranks and slots.
        price: what replicas cost.
        traffic: where the layer's copies come from and what dispatch costs.
    """
    size = cluster.gpus_per_node
    node_E = home_E // np.int32(size)
    if not traffic.by_rank:
        replicas = balance_layer(load_ME, home_E, cluster, price.least, price.of_busiest)
        replicas = worth_their_cell(replicas, load_ME, home_E, cluster, price.of_cell)
        busiest_M = traffic.of_nodes().busiest_M(load_ME, node_E)
        return replace(replicas, cost_M=replicas.cost_M + (-(-busiest_M * traffic.price // size) >> UNIT_BITS))
    load_ME, crossing_ME = np.ascontiguousarray(load_ME), traffic.crossing_ME(load_ME, node_E)
    leaving_M = -(-traffic.leaving_M(node_E) // size)
    choices = [_nothing(len(load_ME))]
    tokens, crossing = max(int(load_ME.sum()), 1), int(crossing_ME.sum())
    if cluster.redundant_slots:
        # What a token of the slowest rank is worth, if it comes with the mean number of copies.
        worth = (1 << UNIT_BITS) + traffic.price * crossing // tokens
        of_busiest = (price.of_busiest << UNIT_BITS) // worth
        choices.append(balance_layer(load_ME, home_E, cluster, price.least, of_busiest))
        if crossing:
            least, of_busiest = max(1, price.least * crossing // tokens), of_busiest * crossing // tokens
            choices.append(balance_layer(crossing_ME, home_E, cluster, least, of_busiest))
    choices = [_as_split(choice, load_ME, crossing_ME, home_E, cluster) for choice in choices]
    return _fastest(
        [
            _with_times(choice, load_ME, crossing_ME, home_E, leaving_M, price, traffic.price, cluster)
            for choice in choices
        ]
    )


def _nothing(num_rows: int) -> LayerReplicas:
    """Return the choice of no replicas; its times are not known yet."""
    none_M, none_Y = np.zeros(num_rows, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return LayerReplicas(
        limit_M=none_M,
        cost_M=none_M,
        end_M=none_M,
        index_Y2=np.zeros((0, 2), dtype=np.int32),
        tokens_Y=none_Y,
        crossing_Y=none_Y,
    )


def _as_split(
    choice: LayerReplicas,
    load_ME: NDArray[np.int64],
    crossing_ME: NDArray[np.int64],
    home_E: NDArray[np.int32],
    cluster: Cluster,
) -> LayerReplicas:
    """Return the choice with the tokens that ranks will give its replicas."""
    row_Y = np.repeat(np.arange(len(load_ME)), np.diff(choice.end_M, prepend=0))
    order_Y = np.lexsort((*choice.index_Y2.T[::-1], row_Y))
    index_Y2 = choice.index_Y2[order_Y]
    index_Y4 = np.stack([row_Y, np.zeros_like(row_Y), *index_Y2.T], axis=1).astype(np.int32)
    tokens_Y, crossing_Y = split_step(
        load_ME[:, None], crossing_ME[:, None], home_E[None], index_Y4, cluster.gpus_per_node, cluster.num_ranks
    )
    return replace(choice, index_Y2=index_Y2, tokens_Y=tokens_Y, crossing_Y=crossing_Y)


def _replicas(
    choice: LayerReplicas,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    return choice.end_M, choice.index_Y2, choice.tokens_Y, _copies(choice)


def _copies(choice: LayerReplicas) -> NDArray[np.int64]:
    assert choice.crossing_Y is not None
    return choice.crossing_Y


def _with_times(
    choice: LayerReplicas,
    load_ME: NDArray[np.int64],
    crossing_ME: NDArray[np.int64],
    home_E: NDArray[np.int32],
    leaving_M: NDArray[np.int64],
    price: ReplicaPrice,
    traffic_price: int,
    cluster: Cluster,
) -> LayerReplicas:
    """Return the choice with the times of its cells."""
    limit_M, copies_M, busiest_M = _busiest_ranks(
        load_ME,
        crossing_ME,
        home_E,
        cluster.num_ranks,
        *_replicas(choice),
    )
    dispatch_M = -(-np.maximum(copies_M, leaving_M) * traffic_price >> UNIT_BITS)
    of_replicas_M = busiest_M * price.of_busiest + (busiest_M > 0) * price.of_cell
    return replace(choice, limit_M=limit_M, cost_M=limit_M + dispatch_M + of_replicas_M)


def _fastest(choices: list[LayerReplicas]) -> LayerReplicas:
    """Return the fastest choice of every row; of equally fast ones, the first."""
    limit_KM, cost_KM = (np.stack([getattr(choice, name) for choice in choices]) for name in ("limit_M", "cost_M"))
    fastest_M, row_M = cost_KM.argmin(axis=0), np.arange(cost_KM.shape[1])
    row_Y = np.concatenate([np.repeat(row_M, np.diff(choice.end_M, prepend=0)) for choice in choices])
    choice_Y = np.repeat(np.arange(len(choices)), [len(choice.tokens_Y) for choice in choices])
    taken_Y = np.flatnonzero(fastest_M[row_Y] == choice_Y)
    taken_Y = taken_Y[np.argsort(row_Y[taken_Y], kind="stable")]
    return LayerReplicas(
        limit_M=limit_KM[fastest_M, row_M],
        cost_M=cost_KM.min(axis=0),
        end_M=np.searchsorted(row_Y[taken_Y], row_M, side="right"),
        index_Y2=np.concatenate([choice.index_Y2 for choice in choices])[taken_Y],
        tokens_Y=np.concatenate([choice.tokens_Y for choice in choices])[taken_Y],
        crossing_Y=np.concatenate([_copies(choice) for choice in choices])[taken_Y],
    )


@compile_once
def _busiest_ranks(
    load_ME: NDArray[np.int64],
    crossing_ME: NDArray[np.int64],
    home_E: NDArray[np.int32],
    num_ranks: int,
    end_M: NDArray[np.int64],
    index_Y2: NDArray[np.int32],
    tokens_Y: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the most tokens of a rank, copies that enter one, and replicas that leave or enter one, `[M]` each."""
    num_rows, num_experts = load_ME.shape
    most_tokens_M = np.zeros(num_rows, dtype=np.int64)
    most_copies_M = np.zeros(num_rows, dtype=np.int64)
    most_replicas_M = np.zeros(num_rows, dtype=np.int64)
    sum_R4 = np.empty((num_ranks, 4), dtype=np.int64)  # tokens, copies, replicas that leave, replicas that come
    begin = 0
    for row in range(num_rows):
        sum_R4[:] = 0
        for expert in range(num_experts):
            sum_R4[home_E[expert], 0] += load_ME[row, expert]
            sum_R4[home_E[expert], 1] += crossing_ME[row, expert]
        for replica in range(begin, end_M[row]):
            home, rank = home_E[index_Y2[replica, 0]], index_Y2[replica, 1]
            sum_R4[home, 0] -= tokens_Y[replica]
            sum_R4[rank, 0] += tokens_Y[replica]
            sum_R4[home, 1] -= crossing_Y[replica]
            sum_R4[rank, 1] += crossing_Y[replica]
            sum_R4[home, 2] += 1
            sum_R4[rank, 3] += 1
        begin = end_M[row]
        most_tokens_M[row] = sum_R4[:, 0].max()
        most_copies_M[row] = sum_R4[:, 1].max()
        most_replicas_M[row] = sum_R4[:, 2:].max()
    return most_tokens_M, most_copies_M, most_replicas_M
