"""Checkpoints of a GPT in megatron's sharded format, and jobs whose experts are away from their original places."""

import queue
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from harness.distributed.comparison import balanced_job, num_micro_batches
from harness.distributed.gpt_job import GptJob
from relibra.agent import Phase
from relibra.planning import Cluster

METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
"""To be copied for each use, because megatron writes the present data-parallel group into it."""


def sharded(job: GptJob, *, is_loading: bool) -> dict[str, Any]:
    """Return the sharded state as megatron's own training loop names it: `model`, or `model<i>` with several chunks."""
    chunks = {name: model.sharded_state_dict(metadata=dict(METADATA)) for name, model in named(job)}
    of_all = chunks if len(chunks) > 1 else chunks["model"]
    return chunks | {
        "optimizer": job.optimizer.sharded_state_dict(of_all, is_loading=is_loading, metadata=dict(METADATA))
    }


def named(job: GptJob) -> list[tuple[str, GPTModel]]:
    several = len(job.models) > 1
    return [(f"model{index}" if several else "model", model) for index, model in enumerate(job.models)]


def save(job: GptJob, folder: Path, strategy: Any = None) -> None:
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    dist_checkpointing.save(sharded(job, is_loading=False), str(folder), strategy)


def shared_folder() -> Path:
    """Return a new folder, the same on all ranks, and allow megatron to save there."""
    # By default megatron spawns a helper process for this queue, which imports torch anew.
    filesystem_async._results_queue = queue.Queue()
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    return Path(shared[0])


def load(job: GptJob, folder: Path) -> None:
    loaded = dist_checkpointing.load(sharded(job, is_loading=True), str(folder))
    for name, model in named(job):
        model.load_state_dict(loaded[name])
    job.optimizer.load_state_dict(loaded["optimizer"])


def moved(cluster: Cluster, *, num_experts: int, steps: int, **options: Any) -> GptJob:
    """Return a job after `steps` steps, with experts away from their original places."""
    job, _ = balanced_job(cluster, num_experts=num_experts, **options)
    assert job.agent is not None
    for step in range(steps):
        job.agent.begin_step(step, Phase.UPDATE)
        job.step(step, num_micro_batches())
        job.agent.end_step()
    assert (job.agent.home_rank_LE != cluster.identity_placement(job.model)).any()
    return job


def same(got: dict[str, dict[str, Tensor]], want: dict[str, dict[str, Tensor]]) -> list[str]:
    """Return the names of all tensors that differ in any bit."""
    return [
        name
        for kind in want
        for name in want[kind].keys() | got[kind].keys()
        if name not in got[kind] or name not in want[kind] or not torch.equal(got[kind][name], want[kind][name])
    ]


def assert_loads_without_relibra(cluster: Cluster, *, num_experts: int = 6, **options: Any) -> None:
    """Save after a reorder, and load without relibra in the same arrangement of ranks: no bit differs."""
    folder = shared_folder() / "checkpoint"
    job = moved(cluster, num_experts=num_experts, steps=1, **options)
    want = job.state()
    save(job, folder)
    assert job.agent is not None
    job.agent.detach()
    plain = GptJob(cluster, num_experts=num_experts, **options)
    assert same(plain.state(), want) != []
    load(plain, folder)
    assert same(plain.state(), want) == []
