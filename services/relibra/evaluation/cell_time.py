"""The simulated time of every cell of a step, part by part, for one forward pass.

M rows (EP groups x micro-batches), L layers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.dispatch_time import dispatch_us_ML
from relibra.evaluation.expert_time import slowest_rank_us_ML
from relibra.evaluation.training import Training
from relibra.evaluation.work import Work


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


def cells_of(work: Work, training: Training) -> Cells:
    """Return the times of the cells that do this work."""
    constants, model, hardware = training.constants, training.model, training.hardware
    attention_ML, other_ML = _attention_us_ML(work, training)
    inside_us = model.expert_weight_size_bytes / constants.weight_bytes_per_us
    across_us = model.expert_weight_size_bytes / constants.state_across_bytes_per_us
    return Cells(
        attention_ML=attention_ML,
        other_ML=other_ML,
        experts_ML=slowest_rank_us_ML(work, model, constants, hardware.num_sms, hardware.measured),
        dispatch_ML=dispatch_us_ML(
            work.copies_MLNR,
            training.token_size_bytes,
            constants,
            training.cluster,
            model if training.dispatcher.sends_once_per_node else None,
        ),
        fetch_inside_ML=work.weights_inside_ML.astype(np.float64) * inside_us,
        fetch_across_ML=work.weights_across_ML.astype(np.float64) * across_us,
    )


def _attention_us_ML(work: Work, training: Training) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the times outside routed experts, in MoE layers and elsewhere; all source ranks have equal tokens."""
    model, num_layers = training.model, training.model.num_layers
    tokens_M = work.copies_M / (model.top_k * training.cluster.num_ranks)
    us_M1 = (tokens_M / training.constants.flop_per_us)[:, None]
    layer_ML = np.repeat(us_M1 * model.layer_flop(1, training.sequence_length), num_layers, axis=1)
    other_ML = np.repeat(us_M1 * model.other_flop(1, training.sequence_length) / num_layers, num_layers, axis=1)
    return layer_ML, other_ML
