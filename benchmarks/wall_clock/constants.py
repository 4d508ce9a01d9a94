"""The constants of this machine that the simulation takes: the times of an expert and of an all-to-all."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.wall_clock.jobs import HIDDEN_SIZE, Job
from relibra.planning import Model
from relibra.planning.cost import CostModel


def measured_cost(job: Job, model: Model, num_tokens: int, host_us: float) -> CostModel:
    """Return the measured times of an expert and of an all-to-all, with all ranks busy.

    Args:
        job: has the experts.
        model: its MoE layers.
        num_tokens: the tokens of a rank in a micro-batch.
        host_us: the measured host time of a cell with replicas.
    """
    mean_tokens = num_tokens * model.top_k * dist.get_world_size() // model.num_experts
    # The last number is that of all ranks together, which a popular expert comes close to.
    at_tokens = tuple(mean_tokens * eighths // 8 for eighths in (1, 4, 8, 16, 64))
    expert_us = np.maximum.accumulate([job.expert_us(each) for each in at_tokens])
    return CostModel(
        expert_tokens=(0.0, *at_tokens),
        expert_us=(0.0, *expert_us.tolist()),
        token_size_bytes=2 * 4 * HIDDEN_SIZE,
        intra_node_bytes_per_us=(bytes_per_us := all_to_all_bytes_per_us()),
        inter_node_bytes_per_us=bytes_per_us,  # the rate at which planning charges moves of experts
        hidden_transfer_share=0.0,  # a rank has one core, so it cannot compute while it copies
        host_us=host_us,
    )


def median_cost(costs: Sequence[CostModel]) -> CostModel:
    """Return a cost model with the median time and the median rate of several."""
    rate = float(np.median([cost.intra_node_bytes_per_us for cost in costs]))
    return replace(
        costs[0],
        expert_us=tuple(np.median([cost.expert_us for cost in costs], axis=0).tolist()),
        intra_node_bytes_per_us=rate,
        inter_node_bytes_per_us=rate,
    )


def all_to_all_bytes_per_us(size_bytes: int = 8 << 20) -> float:
    """Measure the rate at which a rank sends and receives at the same time."""
    sent = torch.zeros(size_bytes // 4)
    received = torch.zeros_like(sent)
    times_s = []
    for _ in range(8):
        dist.barrier()
        began = time.perf_counter()
        dist.all_to_all_single(received, sent)
        times_s.append(time.perf_counter() - began)
    return size_bytes * (1 - 1 / dist.get_world_size()) / float(np.median(times_s[1:])) / 1e6
