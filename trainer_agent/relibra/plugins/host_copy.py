"""Whether a node keeps a host copy of its experts, judged by how fast weights come from it and from a peer."""

import re
import socket
from collections import Counter
from math import ceil, inf
from pathlib import Path

import torch.distributed as dist

from relibra.agent import Agent
from relibra.agent.link_rates import LinkRates
from relibra.agent.transport.contract import Copy
from relibra.agent.transport.schedule import transfer_schedule
from relibra.errors import Unsupported
from relibra.planning import Cluster, CostModel, Model

_MOST_MEMORY = 0.1
"""The part of the available host memory that the copy may take. It needs 2 bytes per weight, while frameworks offload
up to 18 per weight (weights, gradients in fp32, main weights and two moments)."""
_MICRO_BATCHES = 8
"""Within a pass of this many micro-batches, the copy must save the time that its making took."""


def keep_host_copy(
    agent: Agent, model: Model, cluster: Cluster, cost: CostModel | None, links: LinkRates, wanted: bool | None
) -> str:
    """Collective over all ranks, before the first step: keep a host copy if it pays; return the decision and why.

    Args:
        agent: the agent. It has a host copy if the user wants one.
        model: the model, with the sizes of its experts.
        cluster: the EP groups.
        cost: the prices of plans; None where ranks have no GPUs.
        links: what ranks measured; nothing where ranks have no GPUs.
        wanted: the user's choice, which counts on rank 0 only; None to decide here.

    Raises:
        RelibraError: a peer is gone.
    """
    told = [wanted]
    dist.broadcast_object_list(told, src=0)
    (wanted,) = told
    keeps, why = bool(wanted), "as configured"
    if wanted is None:
        experts_per_rank = cluster.experts_per_rank(model)
        keeps, why = choose(
            links,
            cluster,
            relays=agent.relays,
            experts_per_rank=experts_per_rank,
            exposed_share=1 - (cost or CostModel()).hidden_transfer_share,
            memory_share=memory_share(len(agent.layers) * experts_per_rank * model.expert_weight_size_bytes),
        )
        decision = [(keeps, why)]  # ranks with other GPUs may have other prices
        dist.broadcast_object_list(decision, src=0)
        ((keeps, why),) = decision
        try:
            if keeps:
                agent.keep_host_copy()
        except Unsupported as refusal:
            keeps, why = False, str(refusal)
    return f"{'a' if keeps else 'no'} host copy of experts ({why})"


def choose(
    links: LinkRates,
    cluster: Cluster,
    *,
    relays: bool,
    experts_per_rank: int,
    exposed_share: float,
    memory_share: float,
) -> tuple[bool, str]:
    """Return whether a host copy pays, and why.

    The judgment uses the cell that the copy helps most, in which the experts of one rank fill the slots of all others.
    It also uses the time that making the copy takes in each pass, which nothing hides.

    Args:
        links: what ranks measured.
        cluster: the EP groups.
        relays: whether ranks send on experts that they receive.
        experts_per_rank: the experts of a rank in a layer.
        exposed_share: the part of the time of travelling weights that computation does not hide.
        memory_share: the part of the available host memory that the copy would take.
    """
    if links.inside is None:
        return False, "no replicas travel between GPUs"
    if links.from_host is None:
        return False, "a rank could not measure how fast host memory is"
    rates = f"{links.from_host / 1e3:.3g} GB/s from the host and {links.inside / 1e3:.3g} GB/s from a peer, as measured"
    speed = links.from_host / links.inside
    slots = range(cluster.redundant_slots)
    copies = tuple(Copy(0, slot, rank, slot) for rank in range(1, cluster.gpus_per_node) for slot in slots)
    rounds = len(transfer_schedule(copies, relays=relays).rounds)
    beside = transfer_schedule(copies, relays=relays, host_speed=speed)
    from_host = Counter(copies[index].destination_rank for index in beside.from_host)
    gained = rounds - max(len(beside.rounds), max(from_host.values(), default=0) / speed)
    if gained * exposed_share <= 0:
        return False, f"{rates}: peers have sent all replicas before one comes from the host"
    needed = ceil(experts_per_rank / speed / (gained * exposed_share))
    if needed > _MICRO_BATCHES:
        return (
            False,
            f"{rates}: it would save less than its making takes in passes of fewer than {needed} micro-batches",
        )
    if memory_share > _MOST_MEMORY:
        return False, (
            f"it would take {memory_share:.0%} of the host memory that is available, to which frameworks offload; at "
            f"most {_MOST_MEMORY:.0%}"
        )
    return True, f"{rates}: it pays from {needed} micro-batches in a pass on"


def memory_share(size_bytes: int) -> float:
    """Collective over all ranks: return the largest part of a machine's available memory that these blocks take.

    Args:
        size_bytes: the block of this rank; the blocks of all ranks of a machine count together.
    """
    mine = (socket.gethostname(), size_bytes, available_bytes())
    told = [mine] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    needed = Counter[str]()
    for host, size, _ in told:
        needed[host] += size
    return max(needed[host] / available if available else inf for host, _, available in told)


def available_bytes(container: Path = Path("/sys/fs/cgroup"), machine: Path = Path("/proc/meminfo")) -> int:
    """Return the host memory that this process may still take, of its machine or its container; 0 if nobody knows."""
    try:
        known = re.search(r"MemAvailable:\s*(\d+) kB", machine.read_text())
    except OSError:
        known = None
    available = 0 if known is None else int(known[1]) << 10
    try:
        limit, taken, parts = ((container / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:  # no container, or version 1 of control groups
        return available
    if not limit.strip().isdecimal():
        return available
    dropped = re.search(r"^inactive_file (\d+)$", parts, re.M)  # cached files, which the kernel drops first
    return min(available, int(limit) - int(taken) + (int(dropped[1]) if dropped else 0))
