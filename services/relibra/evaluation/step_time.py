"""Simulate the time of a training step under an assignment, with every cost that balancing has.

A layer waits for its slowest rank, so the time of a micro-batch is a sum over layers of

    attention + dispatch and combine + slowest rank's experts + exposed transfer of weights + decisions

A step has a recompute phase (forward of all micro-batches, without gradients) and an update phase (forward and
backward). The backward pass computes twice the forward pass and sends token gradients the same ways. It fetches weights
again, because all layers share the slots, while the gradients of replicas return in fp32 and are added to those of the
home. Weights that are known ahead travel during the layer's attention. Weights that are known only after the router has
run travel during dispatch, if they stay in their node. At the beginning of a step experts move to their new homes, and
nothing hides that.

The simulation leaves out costs that are the same for all policies: the optimizer, gradients of data parallelism, and
latencies of collectives and launches. They would bring all figures closer together. It also leaves out what experts of
unequal sizes cost in matrix multiplications besides their weights, which UltraEP calls the main reason why it stays 5 %
below balance.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, N nodes, G ranks per node, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known
from relibra.evaluation.cell_time import Cells, Training, balanced_cells, cells_of
from relibra.planning.load import StepLoad

_GRADIENT_BYTES_PER_WEIGHT_BYTE = 2
"""fp32 gradients of bf16 weights; counts on the network between nodes."""

_BACKWARD = 2
"""The compute of a backward pass, in forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The seconds of one step, by cause."""

    attention_s: float
    """Everything that balancing does not change: attention, shared experts, dense layers, output head."""
    experts_s: float
    dispatch_s: float
    transfer_s: float
    """The exposed transfers of replica weights and gradients, and what hidden transfers take from attention."""
    decision_s: float
    reorder_s: float
    bubble_s: float
    """The wait of pipeline stages for the first and the last micro-batch."""

    @property
    def total_s(self) -> float:
        """The seconds of the whole step."""
        parts = (self.attention_s, self.experts_s, self.dispatch_s, self.transfer_s, self.decision_s)
        return sum(parts) + self.reorder_s + self.bubble_s


def step_time(
    assignment: Assignment, load: StepLoad, training: Training, previous_home_LE: NDArray[np.int32] | None = None
) -> StepTime:
    """Simulate one step.

    Args:
        assignment: the assignment of all cells of `load`.
        load: the token copies by source rank.
        training: the model, the machines and how they train.
        previous_home_LE: the home ranks in the step before; by default nothing moves.
    """
    cells = cells_of(assignment, load, training)
    reorder_s = 0.0 if previous_home_LE is None else _reorder_s(assignment.home_LE, previous_home_LE, training)
    return _add_up(cells, assignment.known, assignment.decision_us, training, reorder_s)


def sent_bytes(assignment: Assignment, training: Training, previous_home_LE: NDArray[np.int32]) -> int:
    """Return the bytes that all ranks send for balance: weights and gradients of replicas, and experts that move."""
    model = training.model.model()
    a_replica = (_num_forwards(training) + 1 + _GRADIENT_BYTES_PER_WEIGHT_BYTE) * model.expert_weight_size_bytes
    num_moved = int((assignment.home_LE != previous_home_LE).sum())
    return int(assignment.is_replica_Q.sum()) * a_replica + num_moved * model.expert_state_size_bytes


def balanced_step_time(load: StepLoad, training: Training) -> StepTime:
    """Simulate the step with a router that spreads tokens evenly over all experts, which no balancing can beat."""
    return _add_up(balanced_cells(load, training), Known.AHEAD, 0.0, training, 0.0)


def _num_forwards(training: Training) -> int:
    return 3 if training.recompute_activations else 2


def _reorder_s(home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], training: Training) -> float:
    """Return the time in which experts move with their state, all ranks at once, each pipeline stage its own layers."""
    cluster, size_bytes = training.cluster, training.model.model().expert_state_size_bytes
    slowest_us = 0.0
    to_stages, from_stages = (np.array_split(each, training.num_pipeline_stages) for each in (home_LE, previous_LE))
    for to_LE, from_LE in zip(to_stages, from_stages, strict=True):
        moved_LE = to_LE != from_LE
        to_X, from_X = to_LE[moved_LE], from_LE[moved_LE]
        is_inside_X = to_X // cluster.gpus_per_node == from_X // cluster.gpus_per_node
        for is_link_X, bytes_per_us in (
            (is_inside_X, training.hardware.intra_node_bytes_per_us),
            (~is_inside_X, training.hardware.inter_node_bytes_per_us),
        ):
            for end_X in (to_X, from_X):
                most = np.bincount(end_X[is_link_X], minlength=1).max()
                slowest_us = max(slowest_us, float(most) * size_bytes / bytes_per_us)
    return slowest_us / 1e6


def _add_up(cells: Cells, known: Known, decision_us: float, training: Training, reorder_s: float) -> StepTime:
    num_forwards = _num_forwards(training)
    window_ML = training.hiding_share * cells.attention_ML
    fetch_ML = np.maximum(cells.fetch_inside_ML, cells.fetch_across_ML)
    if known is Known.AHEAD:
        exposed_ML = np.maximum(fetch_ML - window_ML, 0.0)
    else:  # dispatch takes half of the time of dispatch and combine, and has the network between nodes to itself
        exposed_ML = np.maximum(cells.fetch_inside_ML - cells.dispatch_ML / 2, cells.fetch_across_ML)
    # In the backward pass every policy knows its replicas ahead.
    return_ML = training.gradient_fetches * cells.fetch_inside_ML
    across_ML = (1 + _GRADIENT_BYTES_PER_WEIGHT_BYTE) * cells.fetch_across_ML
    both_ways_ML = np.maximum(cells.fetch_inside_ML + return_ML, across_ML)
    exposed_backward_ML = np.maximum(both_ways_ML - _BACKWARD * window_ML, 0.0)
    taken_ML = training.gradient_sm_share * np.minimum(return_ML, _BACKWARD * window_ML)
    parts_XML = np.stack(
        [
            (num_forwards + _BACKWARD) * (cells.attention_ML + cells.other_ML),
            (num_forwards + _BACKWARD) * cells.experts_ML,
            (num_forwards + 1) * cells.dispatch_ML,
            num_forwards * exposed_ML + exposed_backward_ML + taken_ML,
            num_forwards * (decision_us + training.reroute_us * (fetch_ML > 0)),
        ]
    )
    stages = np.array_split(parts_XML, training.num_pipeline_stages, axis=2)
    parts_XMS = np.stack([stage_XML.sum(axis=2) for stage_XML in stages], axis=2)
    slowest_M = parts_XMS.sum(axis=0).argmax(axis=1)
    parts_XM = np.take_along_axis(parts_XMS, slowest_M[None, :, None], axis=2)[..., 0]
    parts_XGM = parts_XM.reshape(len(parts_XM), training.cluster.num_ep_groups, -1)  # EP groups wait for each other
    group = int(parts_XGM.sum(axis=(0, 2)).argmax())
    seconds_X = parts_XGM[:, group].sum(axis=1) / 1e6
    bubble_s = (training.num_pipeline_stages - 1) * float(seconds_X.sum()) / parts_XGM.shape[2]
    return StepTime(
        attention_s=float(seconds_X[0]),
        experts_s=float(seconds_X[1]),
        dispatch_s=float(seconds_X[2]),
        transfer_s=float(seconds_X[3]),
        decision_s=float(seconds_X[4]),
        reorder_s=reorder_s,
        bubble_s=bubble_s,
    )
