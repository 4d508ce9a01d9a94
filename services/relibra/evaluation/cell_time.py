"""How long the cells of a step take, part by part: one forward pass of every layer of every micro-batch.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, N nodes, G ranks per node, Q quotas, Y replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.hardware import Hardware
from relibra.evaluation.model_presets import ModelPreset
from relibra.planning.cost import CostModel
from relibra.planning.load import StepLoad
from relibra.planning.topology import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained, on what, and how."""

    model: ModelPreset
    hardware: Hardware
    cluster: Cluster
    sequence_length: float = 8192.0
    """Tokens of a typical sequence, for the cost of attention scores."""
    recompute_activations: bool = False
    """The update phase runs every forward again in its backward."""
    num_pipeline_stages: int = 1
    sends_once_per_node: bool = True
    """Whether dispatch sends a token that several experts of a node want there once, and spreads it inside, as DeepEP
    does; megatron's all-to-all sends every copy."""

    @property
    def distinct_share(self) -> float:
        """Part of the copies of a token that cross nodes as messages of their own, where experts are drawn evenly.

        Of N - 1 other nodes a token needs each with probability 1 - (1 - 1/N)**K, for K (N - 1) / N copies that cross.
        """
        num_nodes, top_k = self.cluster.num_nodes, self.model.top_k
        if num_nodes == 1 or not self.sends_once_per_node:
            return 1.0
        return (1 - (1 - 1 / num_nodes) ** top_k) * num_nodes / top_k


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Microseconds of one forward pass of every cell, `[M, L]` each."""

    attention_ML: NDArray[np.float64]
    experts_ML: NDArray[np.float64]
    """The slowest rank."""
    dispatch_ML: NDArray[np.float64]
    fetch_ML: NDArray[np.float64]
    """Replicas' weights to where they are needed, hidden or not."""


def cells_of(assignment: Assignment, load: StepLoad, training: Training) -> Cells:
    """The cells of `load` under an assignment."""
    cost = training.hardware.cost_of(training.model)
    return Cells(
        attention_ML=_attention_us_ML(load, training),
        experts_ML=_experts_us_ML(assignment, cost, training.cluster),
        dispatch_ML=_dispatch_us_ML(assignment, load, cost, training),
        fetch_ML=_fetch_us_ML(assignment, training),
    )


def balanced_cells(load: StepLoad, training: Training) -> Cells:
    """The cells of `load` if the router spread tokens evenly over all experts."""
    cost, cluster, model = training.hardware.cost_of(training.model), training.cluster, training.model
    rank_tokens_ML = load.load_MLE.sum(axis=-1) / cluster.num_ranks
    per_rank = model.num_experts // cluster.num_ranks
    intra_ML = rank_tokens_ML * (cluster.gpus_per_node - 1) / cluster.num_ranks
    inter_ML = rank_tokens_ML * (cluster.num_nodes - 1) / cluster.num_nodes
    if training.sends_once_per_node:
        intra_ML = intra_ML + inter_ML
    return Cells(
        attention_ML=_attention_us_ML(load, training),
        experts_ML=per_rank * training.hardware.expert_us(cost, rank_tokens_ML / per_rank),
        dispatch_ML=_dispatch_us(cost, training, intra_ML, inter_ML),
        fetch_ML=np.zeros_like(rank_tokens_ML),
    )


def _attention_us_ML(load: StepLoad, training: Training) -> NDArray[np.float64]:
    """What every rank does besides its routed experts, in equal parts over layers; tokens of source ranks are alike."""
    model, num_layers = training.model, training.model.num_layers
    tokens_M = load.load_MLE[:, 0].sum(axis=-1) / (model.top_k * training.cluster.num_ranks)
    flop_M = np.array(
        [
            num_layers * model.layer_flop(tokens, training.sequence_length)
            + model.other_flop(tokens, training.sequence_length)
            for tokens in tokens_M
        ]
    )
    us_M: NDArray[np.float64] = flop_M / num_layers / training.hardware.flop_per_us
    return np.repeat(us_M[:, None], num_layers, axis=1)


def _experts_us_ML(assignment: Assignment, cost: CostModel, cluster: Cluster) -> NDArray[np.float64]:
    us_Q = Hardware.expert_us(cost, assignment.tokens_Q)
    slowest_ML: NDArray[np.float64] = _sum_by_rank(assignment, us_Q, cluster).max(axis=-1)
    return slowest_ML


def _sum_by_rank(assignment: Assignment, value_Q: NDArray[np.floating], cluster: Cluster) -> NDArray[np.float64]:
    row_Q, layer_Q, _, rank_Q = assignment.index_Q4.T.astype(np.int64)
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    place_Q = np.ravel_multi_index((row_Q, layer_Q, rank_Q), shape)
    sum_X: NDArray[np.float64] = np.bincount(place_Q, weights=value_Q, minlength=int(np.prod(shape))).astype(np.float64)
    return sum_X.reshape(shape)


def _dispatch_us_ML(assignment: Assignment, load: StepLoad, cost: CostModel, training: Training) -> NDArray[np.float64]:
    """Slowest adapter or link; copies of an expert take the same share of every source node's tokens."""
    cluster = training.cluster
    num_nodes, size = cluster.num_nodes, cluster.gpus_per_node
    row_Q, layer_Q, expert_Q, rank_Q = assignment.index_Q4.T
    share_Q = assignment.tokens_Q / load.load_MLE[row_Q, layer_Q, expert_Q]
    local_Q = np.empty(len(share_Q))
    sent_MLN = np.empty((assignment.num_rows, len(assignment.home_LE), num_nodes))
    for row in range(assignment.num_rows):
        is_row_Q = row_Q == row
        local_NLE = load.source_load_RLE(row).reshape(num_nodes, size, *load.load_MLE.shape[1:]).sum(axis=1)
        place_Q = (rank_Q[is_row_Q] // size, layer_Q[is_row_Q], expert_Q[is_row_Q])
        local_Q[is_row_Q] = share_Q[is_row_Q] * local_NLE[place_Q]
        sent_MLN[row] = local_NLE.sum(axis=-1).T
    local_MLR = _sum_by_rank(assignment, local_Q, cluster)
    arriving_MLR = _sum_by_rank(assignment, assignment.tokens_Q - local_Q, cluster)
    leaving_MLN = sent_MLN - local_MLR.reshape(*sent_MLN.shape, size).sum(axis=-1)
    leaving_ML = leaving_MLN.max(axis=-1) / size
    inside_MLR = local_MLR * (size - 1) / size
    if not training.sends_once_per_node:
        inter_ML = np.maximum(arriving_MLR.max(axis=-1), leaving_ML)
        return _dispatch_us(cost, training, inside_MLR.max(axis=-1), inter_ML)
    # What is sent once arrives at the adapter with the number of its source, and is spread over NVLink from there.
    arriving_ML = arriving_MLR.reshape(*sent_MLN.shape, size).sum(axis=-1).max(axis=-1) / size
    return _dispatch_us(cost, training, (inside_MLR + arriving_MLR).max(axis=-1), np.maximum(arriving_ML, leaving_ML))


def _dispatch_us(
    cost: CostModel, training: Training, intra_ML: NDArray[np.floating], inter_ML: NDArray[np.floating]
) -> NDArray[np.float64]:
    """`CostModel.dispatch_us` of many cells, less what is not sent twice."""
    us_ML: NDArray[np.float64] = np.maximum(
        intra_ML * (cost.token_size_bytes / cost.intra_node_bytes_per_us),
        inter_ML * (training.distinct_share * cost.token_size_bytes / cost.inter_node_bytes_per_us),
    )
    return us_ML


def _fetch_us_ML(assignment: Assignment, training: Training) -> NDArray[np.float64]:
    """Replicas come straight from their home: the rank that sends or receives most is waited for."""
    cluster, index_Y4 = training.cluster, assignment.index_Q4[assignment.is_replica_Q]
    row_Y, layer_Y, expert_Y, to_Y = index_Y4.T
    from_Y = assignment.home_LE[layer_Y, expert_Y]
    is_inside_Y = from_Y // cluster.gpus_per_node == to_Y // cluster.gpus_per_node
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    slowest_ML = np.zeros(shape[:2])
    for is_link_Y, bytes_per_us in (
        (is_inside_Y, training.hardware.intra_node_bytes_per_us),
        (~is_inside_Y, training.hardware.inter_node_bytes_per_us),
    ):
        for end_Y in (from_Y, to_Y):
            place_Y = np.ravel_multi_index((row_Y, layer_Y, end_Y), shape)[is_link_Y]
            num_MLR = np.bincount(place_Y, minlength=int(np.prod(shape))).reshape(shape)
            us_ML = num_MLR.max(axis=-1) * (training.model.expert_weight_size_bytes / bytes_per_us)
            slowest_ML = np.maximum(slowest_ML, us_ML)
    return slowest_ML
