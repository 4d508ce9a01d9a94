"""The device of this rank's tensors, and how the rank joins the others.

A process of ranks calls `install` before it imports megatron, and every rank calls `join` once.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from harness import deep_ep_on_gloo
from harness.distributed import gloo_on_cuda
from harness.distributed.ways_to_join import VARIABLE, Way
from relibra.demo import megatron_on_cpu

WAY = Way(os.environ.get(VARIABLE, Way.CPU))
DEVICE = torch.device(WAY.device)


def install() -> None:
    """Prepare the import of megatron for the device."""
    if WAY is Way.CPU:
        deep_ep_on_gloo.install()
        megatron_on_cpu.install()
        return
    if WAY is Way.GLOO:
        gloo_on_cuda.install()
    megatron_on_cpu.stand_in_for_packages()


def share_one_loop() -> None:
    """Let one thread of this process look for the messages of all groups over gloo, instead of a thread for each."""
    gloo = dist.ProcessGroupGloo
    device = gloo.create_default_device()

    class Gloo(gloo):  # type: ignore[misc, valid-type]
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            options = gloo._Options()
            options._devices, options._timeout, options._threads = [device], timeout, 2
            super().__init__(store, rank, size, options)

    dist.distributed_c10d.ProcessGroupGloo = Gloo


def join(rank: int, num_ranks: int, folder: str, timeout_s: float) -> None:
    """Make this process a rank of the default process group.

    Args:
        rank: the index of this process.
        num_ranks: the number of processes.
        folder: a folder of this launch, in which the ranks meet.
        timeout_s: how long a collective waits for a rank.
    """
    os.environ.update(WAY.environment(rank))
    if WAY is Way.CPU:
        # Ranks wait for one another some hundred times a step. A rank that stays on its core wakes up for a fifth less.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
        share_one_loop()
    else:
        torch.cuda.set_device(0)
    dist.init_process_group(
        WAY.backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=timeout_s),
    )
