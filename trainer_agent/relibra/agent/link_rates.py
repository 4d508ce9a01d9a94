"""The rates of a job's links, by which plans weigh transfers and dispatch: measured once, before the first step."""

import logging
from collections.abc import Mapping
from math import inf, isfinite
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.cells.visit import ReplicaContext
from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.speed import fastest_s, from_host_s, from_peer_s
from relibra.planning import Cluster

log = logging.getLogger(__name__)

_DISPATCHED_BYTES = 64 << 20


class LinkRates(NamedTuple):
    """Bytes per us of a rank in one direction, those of the slowest rank; None for links that nothing travels on."""

    inside: float | None = None
    """Weights of an expert between ranks of a node, on the way of replicas."""
    across: float | None = None
    """An all-to-all between the ranks of an EP group: what goes to other nodes."""
    from_host: float | None = None
    """Weights of an expert from host memory, pinned where there are GPUs, while all ranks take some."""


def measure_links(
    context: ReplicaContext, experts: Mapping[int, Experts], groups: Groups, cluster: Cluster
) -> LinkRates:
    """Collective over all ranks, outside of steps: measure the links. The content of the redundant slots is lost.

    Raises:
        RelibraError: a peer is gone.
    """
    inside = across = from_host = inf  # on a pipeline stage without MoE layers, no replicas travel
    with noticing_death("measuring how fast links are"):
        device = context.slots.device
        if experts and cluster.gpus_per_node > 1 and cluster.redundant_slots:
            layer = min(experts)
            expert, places = experts[layer].parameters[0], context.slots.places(0, 0, layer)
            size_bytes = sum(tensor.nbytes for tensor in expert)
            inside = size_bytes / (from_peer_s(context.transport, expert, places) * 1e6)
            try:
                from_host = size_bytes / (from_host_s(places) * 1e6)
            except RuntimeError as error:  # too little pinned memory: peers wait, so go on
                log.warning("relibra could not measure how fast host memory is: %s", error)
                from_host = -inf
        part_bytes = _DISPATCHED_BYTES // cluster.num_ranks
        buffers = _buffers(part_bytes * cluster.num_ranks, device) if cluster.num_nodes > 1 else None
        has_buffers = torch.tensor(int(buffers is not None))
        dist.all_reduce(has_buffers, dist.ReduceOp.MIN, group=groups.everyone)
        if buffers is not None and has_buffers:
            sent, received = buffers
            lasted_s = fastest_s(lambda: dist.all_to_all_single(received, sent, group=groups.ep), device)
            across = part_bytes * (cluster.num_ranks - cluster.gpus_per_node) / (lasted_s * 1e6)
        slowest = torch.tensor([inside, across, from_host], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MIN, group=groups.everyone)
    return LinkRates(*(rate if isfinite(rate) else None for rate in slowest.tolist()))


def _buffers(size_bytes: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Return what an all-to-all sends and receives; None if the device has no memory for it."""
    try:
        sent, received = torch.zeros(2, size_bytes, dtype=torch.uint8, device=device)
    except RuntimeError as error:
        log.warning("relibra could not measure how fast links between nodes are: %s", error)
        return None
    return sent, received
