"""How long a training step takes under an assignment: a simulation with every cost that balancing has.

A layer waits for its slowest rank, so the time of a micro-batch is a sum over layers of

    attention + dispatch and combine + slowest rank's experts + what of the weights' transfer does not hide + decisions

A step is a recompute phase (forward of all micro-batches, no gradients) and an update phase (forward and backward); the
backward computes twice the forward, sends token gradients the same ways, and fetches weights again, as slots are shared
by all layers, while gradients of replicas return in fp32 and are added to those of the home. Weights known ahead travel
during the layer's attention; those known when the router has run, during dispatch, if they stay in their node. At the
beginning of a step experts move to their new homes, and nothing hides that.

What is the same for all and left out: the optimizer, gradients of data parallelism, latencies of collectives and
launches. They would bring all figures closer together. Left out too is what experts of unequal sizes cost in matrix
multiplications besides their weights, to which UltraEP puts down most of its 5 % to balance.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, N nodes, G ranks per node, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known
from relibra.evaluation.cell_time import Cells, Training, balanced_cells, cells_of
from relibra.planning.load import StepLoad

_GRADIENT_BYTES_PER_WEIGHT_BYTE = 2
"""fp32 gradients of bf16 weights, over the network between nodes."""

_BACKWARD = 2
"""Times the compute of a forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step, by what is waited for."""

    attention_s: float
    """Everything that balancing does not touch: attention, shared experts, dense layers, output head."""
    experts_s: float
    dispatch_s: float
    transfer_s: float
    """Replica weights and gradients that nothing hides, and what those that attention hides take from it."""
    decision_s: float
    reorder_s: float
    bubble_s: float
    """Pipeline stages that wait for the first and the last micro-batch."""

    @property
    def total_s(self) -> float:
        """The step."""
        parts = (self.attention_s, self.experts_s, self.dispatch_s, self.transfer_s, self.decision_s)
        return sum(parts) + self.reorder_s + self.bubble_s


def step_time(
    assignment: Assignment, load: StepLoad, training: Training, previous_home_LE: NDArray[np.int32] | None = None
) -> StepTime:
    """Simulate one step.

    Args:
        assignment: of all cells of `load`.
        load: token copies by source rank.
        training: the rest of the world.
        previous_home_LE: where experts were in the step before; where they are now by default.
    """
    cells = cells_of(assignment, load, training)
    reorder_s = 0.0 if previous_home_LE is None else _reorder_s(assignment.home_LE, previous_home_LE, training)
    return _add_up(cells, assignment.known, assignment.decision_us, training, reorder_s)


def sent_bytes(assignment: Assignment, training: Training, previous_home_LE: NDArray[np.int32]) -> int:
    """What all ranks send in a step for its balance: weights and gradients of replicas, and experts that move."""
    model = training.model.model()
    a_replica = (_num_forwards(training) + 1 + _GRADIENT_BYTES_PER_WEIGHT_BYTE) * model.expert_weight_size_bytes
    num_moved = int((assignment.home_LE != previous_home_LE).sum())
    return int(assignment.is_replica_Q.sum()) * a_replica + num_moved * model.expert_state_size_bytes


def balanced_step_time(load: StepLoad, training: Training) -> StepTime:
    """The same step if the router spread tokens evenly over all experts: what no balancing can beat."""
    return _add_up(balanced_cells(load, training), Known.AHEAD, 0.0, training, 0.0)


def _num_forwards(training: Training) -> int:
    return 3 if training.recompute_activations else 2


def _reorder_s(home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], training: Training) -> float:
    """Experts with their state, from all ranks at once; each pipeline stage moves its own layers."""
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
        shown_ML = np.maximum(fetch_ML - window_ML, 0.0)
    else:  # dispatch, half of what it and combine take, has the network between nodes to itself
        shown_ML = np.maximum(cells.fetch_inside_ML - cells.dispatch_ML / 2, cells.fetch_across_ML)
    # The backward knows its replicas whoever decided.
    return_ML = training.gradient_fetches * cells.fetch_inside_ML
    across_ML = (1 + _GRADIENT_BYTES_PER_WEIGHT_BYTE) * cells.fetch_across_ML
    both_ways_ML = np.maximum(cells.fetch_inside_ML + return_ML, across_ML)
    shown_backward_ML = np.maximum(both_ways_ML - _BACKWARD * window_ML, 0.0)
    taken_ML = training.gradient_sm_share * np.minimum(return_ML, _BACKWARD * window_ML)
    parts_XML = np.stack(
        [
            (num_forwards + _BACKWARD) * (cells.attention_ML + cells.other_ML),
            (num_forwards + _BACKWARD) * cells.experts_ML,
            (num_forwards + 1) * cells.dispatch_ML,
            num_forwards * shown_ML + shown_backward_ML + taken_ML,
            num_forwards * (decision_us + training.reroute_us * (fetch_ML > 0)),
        ]
    )
    stages = np.array_split(parts_XML, training.num_pipeline_stages, axis=2)
    parts_XMS = np.stack([stage_XML.sum(axis=2) for stage_XML in stages], axis=2)
    slowest_M = parts_XMS.sum(axis=0).argmax(axis=1)
    parts_XM = np.take_along_axis(parts_XMS, slowest_M[None, :, None], axis=2)[..., 0]
    parts_XGM = parts_XM.reshape(len(parts_XM), training.cluster.num_ep_groups, -1)  # groups wait for one another
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
