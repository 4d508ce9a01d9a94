"""A copy of the node's expert weights in host memory, for phases in which no optimizer steps.

Weights then come from host memory and from other ranks at the same time. How fast the two ways are depends on the
machine, so the first refresh measures both with one expert.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.experts import Experts
from relibra.agent.transport import FrozenLayer, HostWeights, Pull, peers_by_round
from relibra.agent.transport.delivery import Tensors
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.speed import fastest_s, from_peer_s
from relibra.agent.transport.timed import TimedHost, TimedTransport


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
        _, behind = peers_by_round(self._transport.rank, self._transport.num_ranks)[0]
        device = into[0].device
        with noticing_death("measuring how fast experts travel"):
            peer_s = from_peer_s(self._transport, self._one, into)
            host_s = fastest_s(lambda: self._host.start([Pull(behind, 0, into)]).wait(), device)
            lasted = torch.tensor([peer_s, host_s], device=device)
            dist.all_reduce(lasted, dist.ReduceOp.MAX, group=self._group)
        peer_s, host_s = lasted.tolist()
        return float(peer_s / host_s)
