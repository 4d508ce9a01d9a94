"""How fast the links between ranks are, measured by moving something once, outside of steps."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relibra.agent.transport.contract import ExpertTransport, Receive, Send
from relibra.agent.transport.schedule import peers_by_round

_NUM_TRIALS = 3


def fastest_s(way: Callable[[], None], device: torch.device) -> float:
    """Return how long `way` takes on a device, the fastest of a few times. The host waits for the device."""
    lasted_s = []
    for _ in range(_NUM_TRIALS):
        began_s = time.perf_counter()
        way()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        lasted_s.append(time.perf_counter() - began_s)
    return min(lasted_s)


def from_peer_s(transport: ExpertTransport, tensors: Sequence[Tensor], into: Sequence[Tensor]) -> float:
    """Collective over the ranks of `transport`: return how long the tensors of one expert take from a peer.

    Args:
        transport: between at least two ranks.
        tensors: what this rank sends, on one device.
        into: where it receives as much, in memory of the transport, whose content is lost.
    """
    ahead, behind = peers_by_round(transport.rank, transport.num_ranks)[0]
    transfers = transport.prepare([Send(ahead, into)], [Receive(behind, into)])
    sent = [tensor.detach() for tensor in tensors]
    return fastest_s(lambda: transfers.start([sent]).wait(), into[0].device)


def from_host_s(into: Sequence[Tensor]) -> float:
    """Return how long the tensors of one expert take from host memory, which is pinned where they are on a GPU.

    Args:
        into: where they arrive; the content is lost.
    """
    held = [torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda) for tensor in into]

    def pull() -> None:
        for tensor, source in zip(into, held, strict=True):
            tensor.copy_(source, non_blocking=True)

    return fastest_s(pull, into[0].device)
