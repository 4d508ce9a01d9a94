"""For how long devices wait for their hosts in every cell of a step.

M rows (EP groups x micro-batches), L layers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.cell_time import Cells
from relibra.evaluation.training import Training
from relibra.planning.machines.dispatcher import NUM_FORWARDS
from relibra.planning.machines.host_work import MEGATRON, RELIBRA, STAGES, awaited
from relibra.planning.machines.two_clocks import Stage, idle_us

BACKWARD = 2
"""The compute of a backward pass, in forward passes."""


def device_us_ML(cells: Cells) -> dict[str, NDArray[np.floating[Any]]]:
    """Return what devices do in the stages of a pass, without kernels between router and dispatch."""
    return {
        "dispatch": cells.dispatch_ML / 2,
        "experts": cells.experts_ML,
        "combine": cells.dispatch_ML / 2,
        "attention": cells.attention_ML,
        "router": np.zeros_like(cells.attention_ML),
        "backward": BACKWARD * (cells.attention_ML + cells.experts_ML) + cells.dispatch_ML,
    }


def waiting_us_ML(
    cells: Cells, training: Training, is_added_ML: NDArray[np.bool_], kernels_us_ML: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """Return for how long devices wait for their hosts over all passes of a step.

    Args:
        cells: the times of devices in a forward.
        training: how the job trains.
        is_added_ML: where hosts have the agent's work for replicas, beside megatron's.
        kernels_us_ML: what devices do in a forward between router and dispatch.
    """
    waits = awaited(training.dispatcher, shapes_known=training.shapes_known)
    worked = device_us_ML(cells) | {"router": kernels_us_ML}
    stages = {
        name: Stage(
            MEGATRON[name].us(training.constants) + RELIBRA[name].us(training.constants) * is_added_ML,
            worked[name],
            name in waits,
        )
        for name in MEGATRON
    }
    waiting_ML: NDArray[np.floating[Any]] = np.asarray(
        NUM_FORWARDS * idle_us([stages[name] for name in STAGES]) + idle_us([stages["backward"]])
    )
    return waiting_ML
