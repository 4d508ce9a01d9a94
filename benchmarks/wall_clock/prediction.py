"""Simulate the steps that `measure` times.

S sequences, L MoE layers, E experts.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.cell_time import Training
from relibra.evaluation.hardware import Hardware
from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.simulation import simulate
from relibra.evaluation.step_time import balanced_step_time
from relibra.evaluation.workload import Workload
from relibra.planning import Cluster, Model, PlanParams, Schedule
from relibra.planning.cost import CostModel


def predict(
    counts: Sequence[NDArray[np.uint32]],
    schedule: Schedule,
    model: Model,
    cluster: Cluster,
    cost: CostModel,
    hidden_size: int,
    expert_ffn_size: int,
    sequence_length: int,
    balanced_s: float,
) -> dict[str, float]:
    """Simulate training steps on two CPU cores.

    Args:
        counts: the token copies `[S, L, E]` of the warm-up step and of every step after it.
        schedule: the schedule of every step.
        model: the MoE layers that were trained.
        cluster: the EP group, on one node.
        cost: the measured times of an expert, and the bytes sent per microsecond.
        hidden_size: the hidden size of the model.
        expert_ffn_size: the intermediate size of an expert.
        sequence_length: the number of tokens that attention sees.
        balanced_s: the measured seconds of a step under forced balance. They determine the speed of everything but
            experts and dispatch.

    Returns:
        Means over steps: the seconds of plain and relibra steps, the gain, the share of balance, imbalances, replicas
        per cell, and the experts' share of a balanced step.
    """
    preset = ModelShape(
        name="wall-clock",
        num_layers=model.num_layers,
        num_dense_layers=0,
        num_experts=model.num_experts,
        top_k=model.top_k,
        hidden_size=hidden_size,
        expert_ffn_size=expert_ffn_size,
        dense_ffn_size=0,
        num_shared_experts=0,
        attention_parameters=4 * hidden_size * hidden_size,
        attention_width=hidden_size,
        vocabulary_size=1024,
    )
    hardware = Hardware(
        name="two CPU cores",
        flop_per_us=1.0,
        hbm_bytes_per_us=1.0,
        intra_node_bytes_per_us=cost.intra_node_bytes_per_us / 2,  # presets count weights in bf16; these are fp32
        inter_node_bytes_per_us=1.0,
        source="measured in the same run",
        measured=cost,
    )
    training = Training(
        model=preset,
        hardware=hardware,
        cluster=cluster,
        sequence_length=sequence_length,
        sends_once_per_node=False,
        hiding_share=0.0,  # a rank has one core, so it cannot compute while it copies
        gradient_fetches=1.0,  # fp32 gradients have as many bytes as fp32 weights
        gradient_sm_share=0.0,
        reroute_us=0.0,
    )
    steps = [_workload(each, schedule, cluster, model.top_k) for each in counts]
    untuned = balanced_step_time(steps[1].load, training)
    rest_s = balanced_s - (untuned.total_s - untuned.attention_s)
    training = replace(training, hardware=replace(hardware, flop_per_us=untuned.attention_s / rest_s))
    rows = []
    for before, now in pairwise(steps):
        plain, relibra = simulate(now, before, training, ("plain", "relibra"), PlanParams(cost=cost))
        rows.append(
            {
                "plain_s": plain.step.total_s,
                "relibra_s": relibra.step.total_s,
                "gain": plain.step.total_s / relibra.step.total_s,
                "of_balance": relibra.of_balanced,
                "plain_imbalance": plain.imbalance,
                "relibra_imbalance": relibra.imbalance,
                "replicas_per_cell": relibra.replicas_per_cell,
                "experts_share": untuned.experts_s / balanced_s,
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _workload(counts_SLE: NDArray[np.uint32], schedule: Schedule, cluster: Cluster, top_k: int) -> Workload:
    length_S = counts_SLE[:, 0].sum(axis=-1).astype(np.int64) // top_k
    return Workload(counts_SLE=counts_SLE, length_S=length_S, schedule=schedule, cluster=cluster)
