"""Simulate the time of a training step under an assignment, with every cost that balancing has.

A layer waits for its slowest rank, so the time of a micro-batch is a sum over layers of

    attention + dispatch and combine + slowest rank's experts + exposed transfer of weights + decisions + idle devices

A step has a recompute phase (forward of all micro-batches, without gradients) and an update phase (forward and
backward). The backward pass computes twice the forward pass and sends token gradients the same ways. It fetches weights
again, because all layers share the slots, while the gradients of replicas return in fp32 and are added to those of the
home. Weights that are known ahead travel during the layer's attention, and take multiprocessors from it. Weights that
are known only after the router has run travel during dispatch, if they stay in their node. Hosts queue work ahead, and
devices are idle where a host does not keep ahead (`host_time`). At the beginning of a step
experts move to their new homes, and nothing hides that. The job's first placement moves most experts; all steps of the
job share its cost.

The simulation leaves out costs that are the same for all policies: the optimizer, gradients of data parallelism, and
latencies of collectives and launches. They would bring all figures closer together.

M rows (EP groups x micro-batches), L layers, E experts, R EP ranks, N nodes, G ranks per node, Q quotas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known
from relibra.evaluation.cell_time import Cells, cells_of
from relibra.evaluation.host_time import BACKWARD, waiting_us_ML
from relibra.evaluation.training import Training
from relibra.evaluation.work import Work, even_work, work_of
from relibra.planning.carriage import Carriage
from relibra.planning.load import StepLoad
from relibra.planning.machines.constants import GRADIENT_BYTES_PER_WEIGHT_BYTE
from relibra.planning.machines.dispatcher import NUM_FORWARDS

_KERNEL_US = 37.0
"""The time of UltraEP's kernel that maps the router's output to copies, once in a forward pass (README: 36 to 39).
relibra's kernels split tokens and place them at the same point; until they are measured on GPUs, they count as much."""


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
    """Decisions and maps of tokens to copies, and what devices wait for hosts because of replicas."""
    host_s: float
    """What devices wait for hosts without any replicas."""
    reorder_s: float
    """Experts that move at the start of the step."""
    first_placement_s: float
    """The step's share of the job's first placement, which moves experts away from plain expert parallelism."""

    @property
    def total_s(self) -> float:
        """The seconds of the whole step."""
        parts = (self.attention_s, self.experts_s, self.dispatch_s, self.transfer_s, self.decision_s, self.host_s)
        return sum(parts) + self.reorder_s + self.first_placement_s


def step_time(
    assignment: Assignment, load: StepLoad, training: Training, previous_home_LE: NDArray[np.int32] | None = None
) -> StepTime:
    """Simulate one step.

    Args:
        assignment: the assignment of all cells of `load`.
        load: the token copies by source rank.
        training: the model, the machines and how they train.
        previous_home_LE: the home ranks in the step before; by default nothing moves, and nothing ever moved.
    """
    return time_of(assignment, work_of(assignment, load, training.cluster), training, previous_home_LE)


def time_of(
    assignment: Assignment, work: Work, training: Training, previous_home_LE: NDArray[np.int32] | None = None
) -> StepTime:
    """Simulate a step whose work is known. Args as those of `step_time`; `work` is that of the assignment."""
    moving_s = first_s = 0.0
    if previous_home_LE is not None:
        identity_LE = training.cluster.identity_placement(training.model.model())
        moving_s = reorder_s(assignment.home_LE, previous_home_LE, training)
        first_s = reorder_s(previous_home_LE, identity_LE, training) / training.num_steps
    return _add_up(
        cells_of(work, training),
        assignment.known,
        training,
        decision_us=assignment.decision_us,
        map_us=_KERNEL_US + (training.constants.gather_us if assignment.maps_on_host else 0.0),
        maps_on_host=assignment.maps_on_host,
        reorder_s=moving_s,
        first_placement_s=first_s,
    )


def sent_bytes(assignment: Assignment, training: Training, previous_home_LE: NDArray[np.int32]) -> int:
    """Return the bytes that all ranks send for balance: weights and gradients of replicas, and experts that move."""
    model = training.model.model()
    a_replica = (NUM_FORWARDS + 1 + GRADIENT_BYTES_PER_WEIGHT_BYTE) * model.expert_weight_size_bytes
    num_moved = int((assignment.home_LE != previous_home_LE).sum())
    times = assignment.num_rows // training.cluster.num_ep_groups if assignment.copies_stay else 1
    return int(assignment.is_replica_Q.sum()) // times * a_replica + num_moved * model.expert_state_size_bytes


def balanced_step_time(load: StepLoad, training: Training) -> StepTime:
    """Simulate the step with a router that spreads tokens evenly over all experts, which no balancing can beat."""
    return balanced_time_of(even_work(load, training.model.num_experts, training.cluster), training)


def balanced_time_of(work: Work, training: Training) -> StepTime:
    """Simulate the balanced step, given its `even_work`."""
    return _add_up(cells_of(work, training), Known.AHEAD, training)


def reorder_s(home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], training: Training) -> float:
    """Return the time of the waves in which experts move with their state."""
    carriage = Carriage(
        expert_bytes=training.model.model().expert_state_size_bytes,
        inside_bytes_per_us=training.constants.state_inside_bytes_per_us,
        across_bytes_per_us=training.constants.state_across_bytes_per_us,
        wave_us=training.constants.wave_us,
    )
    return carriage.us(home_LE, previous_LE, training.cluster.gpus_per_node) / 1e6


def _add_up(
    cells: Cells,
    known: Known,
    training: Training,
    *,
    decision_us: float = 0.0,
    map_us: float = 0.0,
    maps_on_host: bool = False,
    reorder_s: float = 0.0,
    first_placement_s: float = 0.0,
) -> StepTime:
    """Add up all cells. `map_us` is what a device takes in a forward to map the tokens of a cell with replicas."""
    constants = training.constants
    window_ML = constants.hiding_share * cells.attention_ML
    fetch_ML = np.maximum(cells.fetch_inside_ML, cells.fetch_across_ML)
    if known is Known.AHEAD:
        exposed_ML = np.maximum(fetch_ML - window_ML, 0.0)
        taken_ML = constants.weight_sm_share * np.minimum(cells.fetch_inside_ML, window_ML)
    else:  # dispatch takes half of the time of dispatch and combine, and has the network between nodes to itself
        exposed_ML = np.maximum(cells.fetch_inside_ML - cells.dispatch_ML / 2, cells.fetch_across_ML)
        taken_ML = np.zeros_like(fetch_ML)
    # In the backward pass every policy knows its replicas ahead.
    return_ML = constants.return_weights * cells.fetch_inside_ML
    across_ML = (1 + GRADIENT_BYTES_PER_WEIGHT_BYTE) * cells.fetch_across_ML
    both_ways_ML = np.maximum(cells.fetch_inside_ML + return_ML, across_ML)
    exposed_backward_ML = np.maximum(both_ways_ML - BACKWARD * window_ML, 0.0)
    taken_backward_ML = constants.weight_sm_share * np.minimum(cells.fetch_inside_ML, BACKWARD * window_ML)
    taken_backward_ML += constants.gradient_sm_share * np.minimum(return_ML, BACKWARD * window_ML)
    has_replicas_ML = fetch_ML > 0
    kernels_ML = decision_us + map_us * has_replicas_ML
    alone_ML = waiting_us_ML(cells, training, np.zeros_like(has_replicas_ML), kernels_ML)
    added_ML = np.zeros_like(fetch_ML)
    if maps_on_host and (measured := training.hardware.measured) is not None and measured.host_us:
        added_ML = (NUM_FORWARDS + 1) * measured.host_us * has_replicas_ML
    elif maps_on_host:
        added_ML = waiting_us_ML(cells, training, has_replicas_ML, kernels_ML) - alone_ML
    parts_XML = np.stack(
        [
            (NUM_FORWARDS + BACKWARD) * (cells.attention_ML + cells.other_ML),
            (NUM_FORWARDS + BACKWARD) * cells.experts_ML,
            (NUM_FORWARDS + 1) * cells.dispatch_ML,
            NUM_FORWARDS * (exposed_ML + taken_ML) + exposed_backward_ML + taken_backward_ML,
            NUM_FORWARDS * kernels_ML + added_ML,
            alone_ML,
        ]
    )
    parts_XM = parts_XML.sum(axis=2)
    parts_XGM = parts_XM.reshape(len(parts_XM), training.cluster.num_ep_groups, -1)  # EP groups wait for each other
    group = int(parts_XGM.sum(axis=(0, 2)).argmax())
    seconds_X = parts_XGM[:, group].sum(axis=1) / 1e6
    return StepTime(
        attention_s=float(seconds_X[0]),
        experts_s=float(seconds_X[1]),
        dispatch_s=float(seconds_X[2]),
        transfer_s=float(seconds_X[3]),
        decision_s=float(seconds_X[4]),
        host_s=float(seconds_X[5]),
        reorder_s=reorder_s,
        first_placement_s=first_placement_s,
    )
