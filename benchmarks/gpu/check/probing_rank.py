"""`python -m benchmarks.gpu.check.probing_rank WAY RANK FOLDER` is one of two ranks that try to join one way.

It prints a line for each operation that worked, and raises at the first one that did not.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed import gloo_on_cuda
from harness.distributed.ways_to_join import Way


def _all_reduce(mine: Tensor) -> tuple[Tensor, Tensor]:
    summed = mine.clone()
    dist.all_reduce(summed)
    return summed, torch.full_like(mine, 3.0)


def _broadcast(mine: Tensor) -> tuple[Tensor, Tensor]:
    received = mine.clone()
    dist.broadcast(received, src=1)
    return received, torch.full_like(mine, 2.0)


def _all_gather(mine: Tensor) -> tuple[Tensor, Tensor]:
    received = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(received, mine)
    return torch.stack(received), torch.stack([torch.full_like(mine, 1.0), torch.full_like(mine, 2.0)])


def _all_to_all(mine: Tensor) -> tuple[Tensor, Tensor]:
    """Send three elements to rank 0 and five to rank 1."""
    rank = dist.get_rank()
    sizes = [3, 5]
    received = mine.new_zeros(2 * sizes[rank])
    dist.all_to_all_single(received, mine[:8].contiguous(), [sizes[rank]] * 2, sizes)
    return received, torch.tensor([1.0, 2.0]).repeat_interleave(sizes[rank]).to(mine)


def _messages(mine: Tensor, batch: Callable[[list[dist.P2POp]], list[Any]]) -> tuple[Tensor, Tensor]:
    received, peer = torch.zeros_like(mine), 1 - dist.get_rank()
    operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, mine, peer)]
    for work in batch(operations):
        work.wait()
    return received, torch.full_like(mine, peer + 1.0)


def _gather_into(mine: Tensor) -> tuple[Tensor, Tensor]:
    received = mine.new_zeros(2 * len(mine))
    dist.all_gather_into_tensor(received, mine)
    return received, torch.tensor([1.0, 2.0]).repeat_interleave(len(mine)).to(mine)


def _reduce_scatter(mine: Tensor) -> tuple[Tensor, Tensor]:
    received = mine.new_zeros(len(mine) // 2)
    dist.reduce_scatter_tensor(received, mine)
    return received, torch.full_like(received, 3.0)


Operation = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns what arrived, and what should have."""


def operations(way: Way) -> dict[str, Operation]:
    """Return what must work, by name: what training needs, and what a distributed optimizer needs besides."""
    found: dict[str, Operation] = {
        "all_reduce": _all_reduce,
        "broadcast": _broadcast,
        "all_gather": _all_gather,
        "all_to_all": _all_to_all,
    }
    if way.backend == "gloo":
        found["messages_through_host"] = partial(_messages, batch=gloo_on_cuda.through_host)
    if way is not Way.GLOO:
        found["messages"] = partial(_messages, batch=dist.batch_isend_irecv)
        found |= {"all_gather_into_tensor": _gather_into, "reduce_scatter_tensor": _reduce_scatter}
    return found


def main(way: Way, rank: int, folder: str) -> None:
    """Join, run all operations, and leave."""
    if way is not Way.CPU:
        torch.cuda.set_device(0)
    join = partial(dist.init_process_group, way.backend, init_method=f"file://{folder}/rendezvous")
    join(rank=rank, world_size=2, timeout=timedelta(seconds=30))
    mine = torch.full((4096,), rank + 1.0, device=way.device)
    for name, operation in operations(way).items():
        got, want = operation(mine)
        if not torch.equal(got, want):
            raise SystemExit(f"{name}: expected {want.unique().tolist()}, got {got.unique().tolist()}")
        print(f"worked: {name}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Way(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
