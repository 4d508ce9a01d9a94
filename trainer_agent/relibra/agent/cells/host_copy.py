"""A copy of the node's expert weights in host memory, for phases in which no optimizer steps.

Weights then come from host memory and from other ranks at the same time. How fast the two ways are depends on the
machine, so the first refresh measures both with one expert.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.experts import Experts
from relibra.agent.transport import FrozenLayer, HostWeights, Parcel, Pull, peers_by_round
from relibra.agent.transport.delivery import Tensors
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.timed import TimedHost, TimedTransport

_NUM_TRIALS = 3


class HostCopy:
    """One rank's view of the host copy. Construction is collective over `group`, the ranks of a node.

    Args:
        group: the ranks of the node.
        transport: between these ranks. It also counts the time that this rank waits for the host copy.
        experts: the experts of this rank, by layer. All ranks have the same layers.

    Raises:
        RelibraError: a peer is gone.
        Unsupported: see `HostWeights`.
    """

    def __init__(self, group: dist.ProcessGroup, transport: TimedTransport, experts: Mapping[int, Experts]) -> None:
        self._group, self._transport = group, transport
        flat = [slot for layer in sorted(experts) for slot in experts[layer].parameters]
        of_layers = [len(experts[layer].parameters) for layer in sorted(experts)]
        self._first = {layer: sum(of_layers[:i]) for i, layer in enumerate(sorted(experts))}
        self._host, self._one, self._speed = HostWeights(group, flat), flat[0] if flat else [], 0.0

    def use(self, group: dist.ProcessGroup) -> None:
        """Meet in `group`, which has the same ranks."""
        self._group = group
        self._host.use(group)

    def refresh(self, into: Tensors) -> None:
        """Collective: copy the present weights of all experts, while no fetch is under way.

        Args:
            into: returns, by layer, room for the weights of an expert, whose content may be lost: a redundant slot.

        Raises:
            RelibraError: a peer is gone.
        """
        self._host.refresh()
        if self._first and not self._speed:  # a pipeline stage without MoE layers copies nothing
            self._speed = self._measured_speed(into(min(self._first)))

    def of(self, layer: int) -> FrozenLayer:
        """Return where the host copy has the weights of a layer."""
        return FrozenLayer(TimedHost(self._host, self._transport), self._first[layer], self._speed)

    def _measured_speed(self, into: Sequence[Tensor]) -> float:
        """Return how many experts arrive from the host in the time of one from a peer; equal on all ranks."""
        ahead, behind = peers_by_round(self._transport.rank, self._transport.num_ranks)[0]

        def from_peer() -> None:
            sends = [Parcel(ahead, tensor.detach(), place) for tensor, place in zip(self._one, into, strict=True)]
            self._transport.start(sends, [Parcel(behind, tensor) for tensor in into]).wait()

        def from_host() -> None:
            self._host.start([Pull(behind, 0, into)]).wait()

        lasted = torch.tensor([_fastest_s(from_peer, into), _fastest_s(from_host, into)], device=into[0].device)
        with noticing_death("measuring how fast experts travel"):
            dist.all_reduce(lasted, dist.ReduceOp.MAX, group=self._group)
        peer_s, host_s = lasted.tolist()
        return float(peer_s / host_s)


def _fastest_s(way: Callable[[], None], into: Sequence[Tensor]) -> float:
    lasted_s = []
    for _ in range(_NUM_TRIALS):
        began_s = time.perf_counter()
        way()
        if into[0].is_cuda:
            torch.cuda.synchronize(into[0].device)
        lasted_s.append(time.perf_counter() - began_s)
    return min(lasted_s)
