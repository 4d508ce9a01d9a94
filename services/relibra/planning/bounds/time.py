"""The time of experts and dispatch under a plan, and what no plan goes below. Only where dispatch has a price.

All three are sums over cells, in microseconds of a step. Choices of plans round what a copy costs, and cap it
(`traffic`); these times do neither.

- The *bound* holds for every plan with the same placement and slots. Tokens of the slowest rank are bounded by
  `bounds/cell.py`. So are the copies from other nodes that enter a rank of an all-to-all: the argument holds for any
  part of an expert's tokens that its copies divide. The placement alone decides what leaves a node.
- The *floor* holds for every placement. Tokens are bounded by `bounds/step.py`. An expert has the fewest copies from
  other nodes if it lives on the node that has most of its tokens, summed over rows. The busiest adapter of a row
  receives at least the mean of all R.

Neither bounds other schedules: sequences that start on other ranks cross less or more.

M rows, L layers, E experts, R EP ranks, Y replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.cost import CostModel
from relibra.planning.job import Cluster
from relibra.planning.plan import replicated_loads
from relibra.planning.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledTime:
    """The time of experts and dispatch in a step, summed over cells."""

    planned_us: float
    bound_us: float
    """No plan with this placement and these slots takes less."""
    floor_us: float
    """No plan of any placement takes less."""


def modelled_time(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    replica_index_Y4: NDArray[np.int32],
    replica_tokens_Y: NDArray[np.int64],
    crossing_MLE: NDArray[np.int64],
    crossing_Y: NDArray[np.int64],
    bound_ML: NDArray[np.float64],
    floor_L: NDArray[np.int64],
    cluster: Cluster,
    traffic: Traffic,
    cost: CostModel,
) -> ModelledTime:
    """Return the time of experts and dispatch under a plan, and its bounds.

    Args:
        load_MLE: the loads that it was made for.
        home_LE: its placement.
        replica_index_Y4: its replicas, as in `Plan`.
        replica_tokens_Y: their tokens.
        crossing_MLE: the copies that come from other nodes than that of their expert.
        crossing_Y: those of them that replicas take.
        bound_ML: tokens of the slowest rank that no plan with this placement goes below.
        floor_L: tokens of the slowest rank, summed over rows, that no plan of any placement goes below.
        cluster: the EP groups.
        traffic: where token copies come from, and who shares an adapter.
        cost: what tokens and copies cost.
    """
    shape = (*load_MLE.shape[:2], cluster.num_ranks)
    size = cluster.gpus_per_node
    copies_ML = np.empty(shape[:2], dtype=np.int64)
    fewest = 0
    for layer, home_E in enumerate(home_LE):
        of_layer, load_ME, node_E = traffic.layer(layer), load_MLE[:, layer], home_E // size
        if traffic.by_rank:
            copies_ML[:, layer] = of_layer.leaving_M(node_E)
        else:
            copies_ML[:, layer] = of_layer.of_nodes().busiest_M(load_ME, node_E)
        fewest += int((load_ME.sum(axis=0) - of_layer.local_NEM.sum(axis=2).max(axis=0)).sum())
    bound_copies_ML = copies_ML
    if traffic.by_rank:
        enters_ML = replicated_loads(crossing_MLE, home_LE, replica_index_Y4, crossing_Y, shape[2]).max(axis=-1)
        least_ML = lower_bound_ML(crossing_MLE, home_LE, cluster).astype(np.int64)
        bound_copies_ML = np.maximum(copies_ML, least_ML * size)
        copies_ML = np.maximum(copies_ML, enters_ML * size)
    slowest_ML = replicated_loads(load_MLE, home_LE, replica_index_Y4, replica_tokens_Y, shape[2]).max(axis=-1)

    def time_us(tokens: int, copies_of_nodes: int) -> float:
        return cost.saved_us(tokens) + cost.crossing_us(copies_of_nodes / size)

    return ModelledTime(
        planned_us=time_us(int(slowest_ML.sum()), int(copies_ML.sum())),
        bound_us=time_us(int(bound_ML.sum()), int(bound_copies_ML.sum())),
        floor_us=time_us(int(floor_L.sum()), -(-fewest // cluster.num_nodes)),
    )
