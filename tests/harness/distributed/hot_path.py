"""What the agent costs a rank's host in forward and backward passes, and one step as a trace.

Three jobs train the same GPT, one step each in turn: without an agent; with an agent and a plan without replicas; and
with replicas. The routers of the first job choose for themselves; the agent replays routing for the other two.

The variables `RELIBRA_HOT_PATH_STEPS` and `RELIBRA_HOT_PATH_FOLDER` say how many steps are timed, and where the rank
writes a Chrome trace of one more step of each job.
"""

import contextlib
import functools
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness.distributed import gpt_batches, gpt_job, gpt_model
from harness.distributed.comparison import balanced_job
from harness.distributed.device import DEVICE
from harness.distributed.gpt_job import GptJob
from harness.host_waits import noting_waits
from relibra.agent import Phase
from relibra.planning import Cluster

NUM_MICRO_BATCHES = 2
NUM_STEPS = int(os.environ.get("RELIBRA_HOT_PATH_STEPS", "2"))
FOLDER = os.environ.get("RELIBRA_HOT_PATH_FOLDER")
Result = dict[str, Any]


def hot_path(cluster: Cluster) -> Result:
    """Return the times of every job's steps in microseconds, and who made the host wait for the device.

    `host_us` ends when the host has queued the step, and `step_us` when the device has done it. `waits` is None without
    a CUDA device.
    """
    num_steps = NUM_STEPS + 3  # one step to warm up, one to be traced, one to count waits in
    options: dict[str, Any] = {"bf16": gpt_model.IS_LARGE}
    balanced = functools.partial(balanced_job, cluster, num_steps=num_steps, **options)
    jobs = {
        "plain": GptJob(cluster, native=True, **options),
        "idle": balanced(plan={"move": False, "replicate": False})[0],
        "replicas": balanced(plan={"move": False})[0],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    waits: dict[str, Counter[str]] = {name: Counter() for name in jobs}
    # Routing is made up before the steps, as in a real job it comes from the rollout.
    known = functools.cache(gpt_batches.routing)
    for step, index in itertools.product(range(num_steps), range(NUM_MICRO_BATCHES)):
        known(jobs["plain"].model, step, index)
    with mock.patch.object(gpt_job, "routing", known):
        for step in range(NUM_STEPS + 1):
            for name, job in jobs.items():
                times[name].append(_timed(job, step))
        for name, job in jobs.items():
            _timed(job, NUM_STEPS + 1, _traced(name))
            _timed(job, NUM_STEPS + 2, noting_waits(waits[name]) if DEVICE.type == "cuda" else None)
    for job in jobs.values():
        if job.agent is not None:
            job.agent.detach()
    return {
        "host_us": {name: [host for host, _ in each[1:]] for name, each in times.items()},
        "step_us": {name: [whole for _, whole in each[1:]] for name, each in times.items()},
        "waits": waits if DEVICE.type == "cuda" else None,
        "num_cells": jobs["plain"].model.num_layers * NUM_MICRO_BATCHES,
    }


def _timed(job: GptJob, step: int, around: AbstractContextManager[None] | None = None) -> tuple[float, float]:
    """Run the forward and backward passes of a step; return their time on the host, and until the device is done."""
    if job.agent is not None:
        outcome = job.agent.begin_step(step, Phase.UPDATE)
        assert outcome.applied is not None, outcome.reason
    for chunk in job.chunks:
        chunk.zero_grad_buffer()
    dist.barrier()
    _finish()
    with around or contextlib.nullcontext():
        began = time.perf_counter()
        job.run(step, NUM_MICRO_BATCHES)
        queued = time.perf_counter()
    _finish()
    done = time.perf_counter()
    if job.agent is not None:
        job.agent.end_step()
    return (queued - began) * 1e6, (done - began) * 1e6


def _finish() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _traced(job: str) -> Iterator[None]:
    """Write a trace of what runs inside to `FOLDER/trace-<job>-<rank>.json`, if there is a folder."""
    if FOLDER is None:
        yield
        return
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE.type == "cuda" else [])]
    with profile(activities=activities) as profiled:
        yield
        _finish()
    profiled.export_chrome_trace(str(Path(FOLDER, f"trace-{job}-{dist.get_rank()}.json")))
