"""`python -m harness.gpu.exchanging_rank FOLDER RANK DEVICE` is one of two ranks that exchange experts.

The ranks use the peer transport: first the way that it measured to be faster, then copy engines, then kernels. The exit
status is 1 if other data arrives than was sent.
"""

import itertools
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.transport import Parcel, PeerTransport
from relibra.agent.transport.push import PushSpeed, PushSpeeds

_FAST, _SLOW = PushSpeed(launch_us=1.0, bytes_per_us=1e6), PushSpeed(launch_us=100.0, bytes_per_us=1e3)
_FORCED = (None, PushSpeeds(copy_engine=_FAST, kernel=_SLOW), PushSpeeds(copy_engine=_SLOW, kernel=_FAST))


def experts(rank: int, turn: int, device: torch.device) -> list[Tensor]:
    """Return experts of odd sizes that together exceed the bytes a transfer has in flight."""
    sizes = (20_000_003, 1_000_001, 0, 1)
    return [(torch.arange(size, device=device) * (2 * turn + rank + 1)).to(torch.int16) for size in sizes]


def main(folder: str, rank: int, device: torch.device) -> None:
    """Exchange twice in each way; the current stream writes the sent experts right before."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    group, peer = dist.group.WORLD, 1 - rank
    assert group is not None
    transport = PeerTransport(group, device, 60.0)
    for turn, speeds in enumerate(itertools.chain.from_iterable([each] * 2 for each in _FORCED)):
        if speeds is not None:
            transport._mover._speeds = speeds
        sent, want = experts(rank, turn, device), experts(peer, turn, device)
        received = [torch.zeros_like(each) for each in want]
        transport.start([Parcel(peer, each) for each in sent], [Parcel(peer, each) for each in received]).wait()
        if not all(map(torch.equal, received, want)):
            sys.exit(1)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), torch.device(sys.argv[3]))
