"""The simulated time of every cell of a step, part by part, for one forward pass.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, Q quotas, Y replicas.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.dispatch_time import copies_of, dispatch_us_ML, even_copies, reached
from relibra.evaluation.hardware import Hardware
from relibra.evaluation.model_shape import ModelShape
from relibra.planning.cost import WEIGHT_TRANSFERS, CostModel
from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A simulated training job: model, machines, and how it trains."""

    model: ModelShape
    hardware: Hardware
    cluster: Cluster
    sequence_length: float = 8192.0
    """The tokens of a typical sequence; they decide what attention scores cost."""
    recompute_activations: bool = False
    """Whether the update phase repeats every forward pass in its backward pass."""
    num_pipeline_stages: int = 1
    sends_once_per_node: bool = True
    """Whether dispatch sends a token only once to each node, and there only once to each rank, that has experts for it.
    DeepEP does; megatron's all-to-all sends every copy."""
    hiding_share: float = 1.0
    """The part of attention behind which weights and gradients can travel. The default is a guess: nothing else uses
    NVLink at that time."""
    gradient_fetches: float = 8.0
    """The time that replicas' gradients take to return over NVLink, as a multiple of the time that their weights take.
    Twice the bytes explain a quarter of it: UltraEP measures 1.9 to 2.4 ms for gradients and 0.21 to 0.32 ms for
    weights."""
    gradient_sm_share: float = 42 / 132
    """The part of the GPU that returning gradients take from attention: UltraEP uses 42 of 132 multiprocessors."""
    reroute_us: float = 37.0
    """The time in which a cell with replicas maps its router's output to copies, under any policy. The default is the
    published time of UltraEP's kernel."""

    @property
    def planning_cost(self) -> CostModel:
        """The cost model that planning gets.

        The time that a transfer takes from attention counts as not hidden. A token copy costs what one more copy adds
        to the traffic between nodes.
        """
        taken = self.gradient_fetches * self.gradient_sm_share / WEIGHT_TRANSFERS
        cost = replace(self.hardware.cost_of(self.model), hidden_transfer_share=max(0.0, 1 - taken))
        if not self.sends_once_per_node:
            return cost
        even, more = 1 / self.cluster.num_nodes, 1e-6
        added = float(np.diff(reached(np.array([even - more, even]), self.model)).item())
        return replace(cost, token_size_bytes=cost.token_size_bytes * added / (more * self.model.top_k))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Microseconds of one forward pass of every cell, `[M, L]` each."""

    attention_ML: NDArray[np.float64]
    """Attention, router and shared experts. Weights for the layer may travel during this time."""
    other_ML: NDArray[np.float64]
    """Dense layers and the output head, spread evenly over the MoE layers."""
    experts_ML: NDArray[np.float64]
    """The routed experts of the slowest rank."""
    dispatch_ML: NDArray[np.float64]
    """Dispatch and combine."""
    fetch_inside_ML: NDArray[np.float64]
    """The transfer of weights to replicas on the home's node, hidden or not."""
    fetch_across_ML: NDArray[np.float64]
    """The transfer of weights to replicas on other nodes. Both networks work at the same time."""


def cells_of(assignment: Assignment, load: StepLoad, training: Training) -> Cells:
    """Return the times of the cells of `load` under an assignment."""
    cost = training.hardware.cost_of(training.model)
    attention_ML, other_ML = _attention_us_ML(load, training)
    return Cells(
        attention_ML=attention_ML,
        other_ML=other_ML,
        experts_ML=_experts_us_ML(assignment, cost, training.cluster),
        dispatch_ML=_dispatch_us_ML(copies_of(assignment, load, training.cluster), cost, training),
        fetch_inside_ML=_fetch_us_ML(assignment, training, inside=True),
        fetch_across_ML=_fetch_us_ML(assignment, training, inside=False),
    )


def balanced_cells(load: StepLoad, training: Training) -> Cells:
    """Return the times of the cells of `load` if the router spread its tokens evenly over all experts."""
    cost, cluster = training.hardware.cost_of(training.model), training.cluster
    rank_tokens_ML = load.load_MLE.sum(axis=-1) / cluster.num_ranks
    per_rank = training.model.num_experts // cluster.num_ranks
    attention_ML, other_ML = _attention_us_ML(load, training)
    return Cells(
        attention_ML=attention_ML,
        other_ML=other_ML,
        experts_ML=per_rank * training.hardware.expert_us(cost, rank_tokens_ML / per_rank),
        dispatch_ML=_dispatch_us_ML(even_copies(load, cluster), cost, training),
        fetch_inside_ML=np.zeros_like(rank_tokens_ML),
        fetch_across_ML=np.zeros_like(rank_tokens_ML),
    )


def _attention_us_ML(load: StepLoad, training: Training) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the times outside routed experts, in MoE layers and elsewhere; all source ranks have equal tokens."""
    model, num_layers = training.model, training.model.num_layers
    tokens_M = load.load_MLE[:, 0].sum(axis=-1) / (model.top_k * training.cluster.num_ranks)
    us_M1 = (tokens_M / training.hardware.flop_per_us)[:, None]
    layer_ML = np.repeat(us_M1 * model.layer_flop(1, training.sequence_length), num_layers, axis=1)
    other_ML = np.repeat(us_M1 * model.other_flop(1, training.sequence_length) / num_layers, num_layers, axis=1)
    return layer_ML, other_ML


def _dispatch_us_ML(copies_MLNR: NDArray[np.float64], cost: CostModel, training: Training) -> NDArray[np.float64]:
    return dispatch_us_ML(copies_MLNR, cost, training.cluster, training.model if training.sends_once_per_node else None)


def _experts_us_ML(assignment: Assignment, cost: CostModel, cluster: Cluster) -> NDArray[np.float64]:
    us_Q = Hardware.expert_us(cost, assignment.tokens_Q)
    row_Q, layer_Q, _, rank_Q = assignment.index_Q4.T.astype(np.int64)
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    place_Q = np.ravel_multi_index((row_Q, layer_Q, rank_Q), shape)
    us_MLR = np.bincount(place_Q, weights=us_Q, minlength=int(np.prod(shape))).reshape(shape)
    slowest_ML: NDArray[np.float64] = us_MLR.max(axis=-1)
    return slowest_ML


def _fetch_us_ML(assignment: Assignment, training: Training, *, inside: bool) -> NDArray[np.float64]:
    """Return the time of fetching weights from their homes: the rank that sends or receives the most decides."""
    cluster, hardware = training.cluster, training.hardware
    row_Y, layer_Y, expert_Y, to_Y = assignment.index_Q4[assignment.is_replica_Q].T
    from_Y = assignment.home_LE[layer_Y, expert_Y]
    is_link_Y = (from_Y // cluster.gpus_per_node == to_Y // cluster.gpus_per_node) == inside
    bytes_per_us = hardware.intra_node_bytes_per_us if inside else hardware.inter_node_bytes_per_us
    shape = (assignment.num_rows, len(assignment.home_LE), cluster.num_ranks)
    most_ML = np.zeros(shape[:2], dtype=np.int64)
    for end_Y in (from_Y, to_Y):
        place_Y = np.ravel_multi_index((row_Y, layer_Y, end_Y), shape)[is_link_Y]
        num_MLR = np.bincount(place_Y, minlength=int(np.prod(shape))).reshape(shape)
        most_ML = np.maximum(most_ML, num_MLR.max(axis=-1))
    us_ML: NDArray[np.float64] = most_ML * (training.model.expert_weight_size_bytes / bytes_per_us)
    return us_ML
