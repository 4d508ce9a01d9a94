"""`python -m harness.gpu.contract_rank FOLDER RANK NUM_RANKS [lost]` is one rank of the contract suite on GPUs.

Ranks take the devices in turn, so that several may share one. With `lost`, the last rank leaves the others waiting.
"""

import os
import sys

import torch
import torch.distributed as dist

from harness.agent import transport_contract as contract
from harness.agent.parcels import Parcel, start
from relibra.agent.transport import SymmetricTransport
from relibra.agent.transport.cuda_memory import CudaMemory

LOST_TIMEOUT_S = 2.0


def make(group: dist.ProcessGroup, timeout_s: float) -> SymmetricTransport:
    return SymmetricTransport(CudaMemory(group, torch.get_default_device(), timeout_s))


def wait_for_the_last(group: dist.ProcessGroup) -> None:
    """Wait on the device for a rank that ends before it sends; the transport ends this process."""
    transport, last = make(group, LOST_TIMEOUT_S), dist.get_world_size(group) - 1
    received = contract.Room.of(transport, 1 << 20).tensor(1 << 10)
    dist.barrier(group)
    if dist.get_rank(group) == last:
        os._exit(0)
    start(transport, [], [Parcel(last, received)]).wait()
    torch.cuda.synchronize()


def main(folder: str, rank: int, num_ranks: int, *, is_lost: bool) -> None:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks)
    group = dist.group.WORLD
    assert group is not None
    if is_lost:
        wait_for_the_last(group)
        return
    for part in (
        contract.arrival,
        contract.ownership,
        contract.refusal,
        contract.reuse,
        contract.relays,
        contract.schedules,
    ):
        part(make, group)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), is_lost="lost" in sys.argv[4:])
