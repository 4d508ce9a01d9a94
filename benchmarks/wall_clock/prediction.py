"""Simulate the steps that `measure` times.

S sequences, L MoE layers, E experts.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.step_time import balanced_step_time, reorder_s, step_time
from relibra.evaluation.training import Training
from relibra.planning import Cluster, Model, PlanParams, Schedule, StepLoad
from relibra.planning.cost import CostModel
from relibra.planning.load import imbalance
from relibra.planning.machines.constants import Constants
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import Hardware
from relibra.planning.solve import solve

_STATE_SIZE = 14 / 12
"""The simulation moves bf16 weights with fp32 masters and moments; fp32 weights with moments have 12 bytes."""

_FIRST_SHARE = 1 / 3
"""What moves in the first step, of what moves later: weights alone, because Adam makes its moments in that step."""


def predict(
    counts: Sequence[NDArray[np.uint32]],
    schedule: Schedule,
    model: Model,
    cluster: Cluster,
    planned_with: CostModel,
    cost: CostModel,
    hidden_size: int,
    expert_ffn_size: int,
    sequence_length: int,
    balanced_s: float,
    warm_up_reorders_s: Sequence[float],
    host_step_us: float,
) -> dict[str, float]:
    """Simulate training steps on CPU cores.

    Args:
        counts: the token copies `[S, L, E]` of the warm-up steps and of every step after them.
        schedule: the schedule of every step.
        model: the MoE layers that were trained.
        cluster: the EP group, on one node.
        planned_with: the cost model that the planner had.
        cost: the measured times of an expert and of hosts, and the bytes sent per microsecond.
        hidden_size: the hidden size of the model.
        expert_ffn_size: the intermediate size of an expert.
        sequence_length: the number of tokens that attention sees.
        balanced_s: the measured seconds of a step under forced balance. They determine the speed of everything but
            experts and dispatch.
        warm_up_reorders_s: the measured seconds of every warm-up step's reorder. They determine the rate of later ones.
        host_step_us: the measured host time of a step with an agent.

    Returns:
        Means over steps: the seconds of plain and relibra steps, and in the latter of planning, of the reorder, of
        transfers of replicas and of the hosts' work for them; the gain, the share of
        balance, imbalances, replicas per cell, and the experts' share of a balanced step.
    """
    training = _training(model, cluster, cost, hidden_size, expert_ffn_size, sequence_length)
    loads = [StepLoad.of(each, schedule, cluster) for each in counts]
    untuned = balanced_step_time(loads[1], training)
    rest_s = balanced_s - (untuned.total_s - untuned.attention_s)
    flop_per_us = training.constants.flop_per_us * untuned.attention_s / rest_s
    training = replace(training, constants=replace(training.constants, flop_per_us=flop_per_us))
    params, rows = PlanParams(cost=planned_with), []
    num_warm_ups = len(warm_up_reorders_s)
    homes = [cluster.identity_placement(model)]
    for load in loads[:num_warm_ups]:
        homes.append(solve(load, schedule, model, cluster, params, homes[-1]).home_rank_LE)
    training = _with_reorder_rate(training, homes, warm_up_reorders_s)
    home_LE = homes[-1]
    for load in loads[num_warm_ups:]:
        began_s = time.perf_counter()
        plan = solve(load, schedule, model, cluster, params, home_LE)
        planning_s = time.perf_counter() - began_s
        relibra, plain = Assignment.of_plan(plan, load), at_home(load.load_MLE, cluster.identity_placement(model))
        plain_s = step_time(plain, load, training).total_s
        balanced = step_time(relibra, load, training, home_LE)
        relibra_s = balanced.total_s + planning_s + host_step_us / 1e6
        home_LE = plan.home_rank_LE
        rows.append(
            {
                "plain_s": plain_s,
                "relibra_s": relibra_s,
                "planning_s": planning_s,
                "reorder_s": balanced.reorder_s,
                "transfer_s": balanced.transfer_s,
                "decision_s": balanced.decision_s,
                "gain": plain_s / relibra_s,
                "of_balance": balanced_s / relibra_s,
                "plain_imbalance": imbalance(plain.rank_loads_MLR(cluster)),
                "relibra_imbalance": imbalance(relibra.rank_loads_MLR(cluster)),
                "replicas_per_cell": float(relibra.is_replica_Q.sum() / load.load_MLE[..., 0].size),
                "experts_share": untuned.experts_s / balanced_s,
            }
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _with_reorder_rate(training: Training, homes: Sequence[NDArray[np.int32]], measured_s: Sequence[float]) -> Training:
    """Return the job with the rate at which experts moved in the warm-up steps, if any did.

    Args:
        training: the job.
        homes: the placement before the first warm-up step, and that of each.
        measured_s: the seconds of their reorders.
    """
    simulated_s = [reorder_s(to_LE, from_LE, training) for from_LE, to_LE in itertools.pairwise(homes)]
    simulated_s[0] *= _FIRST_SHARE
    if not sum(simulated_s) or not sum(measured_s):
        return training
    bytes_per_us = training.constants.state_inside_bytes_per_us * sum(simulated_s) / sum(measured_s)
    return replace(training, constants=replace(training.constants, state_inside_bytes_per_us=bytes_per_us))


def _training(
    model: Model,
    cluster: Cluster,
    cost: CostModel,
    hidden_size: int,
    expert_ffn_size: int,
    sequence_length: int,
) -> Training:
    """Return the job as the simulation knows it, with attention at one FLOP per microsecond."""
    shape = ModelShape(
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
    rate = cost.intra_node_bytes_per_us
    constants = Constants(
        flop_per_us=1.0,
        hbm_bytes_per_us=1.0,  # experts have measured times
        weight_bytes_per_us=rate / 2,  # the simulation counts weights in bf16; these are fp32
        gradient_bytes_per_us=rate,
        state_inside_bytes_per_us=rate * _STATE_SIZE,
        state_across_bytes_per_us=rate * _STATE_SIZE,
        dispatch_inside_bytes_per_us=rate,
        dispatch_across_bytes_per_us=rate,
        hiding_share=0.0,  # a rank has one core, so it cannot compute while it copies
        weight_sm_share=0.0,
        gradient_sm_share=0.0,
        operation_us=0.0,  # what hosts do for replicas is in the measured cost model, and the rest in other times
        driver_call_us=0.0,
        gather_us=0.0,
        wave_us=0.0,  # the rate of moves is that of whole reorders
        tile_rows=1.0,
    )
    hardware = Hardware(
        name="CPU cores",
        flop_per_us=1.0,
        hbm_bytes_per_us=1.0,
        nvlink=0,
        nvlink_bytes_per_us=rate,
        network_bytes_per_us=rate,
        num_sms=1,
        source="measured in the same run",
        measured=cost,
    )
    return Training(
        model=shape,
        hardware=hardware,
        cluster=cluster,
        dispatcher=Dispatcher.ALLTOALL,
        constants=constants,
        sequence_length=sequence_length,
        num_steps=math.inf,  # the warm-up step makes the first placement
    )
