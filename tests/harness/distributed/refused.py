"""Attaching an agent that is refused: to a built model, with options or parts that the agent cannot execute."""

import copy
import functools
from contextlib import contextmanager

import torch.distributed as dist

from harness.distributed.networks import MODEL, SHARDED, Trained
from harness.distributed.observed import raised_by
from harness.distributed.plans import ScriptedPlans
from relibra.agent import AgentConfig, attach


@functools.cache
def sharded(cluster):
    """Return a built model with a distributed optimizer."""
    return Trained(cluster, ddp=SHARDED)


def refused(cluster, trained, /, **changes):
    """Return the error with which attaching is refused. It leaves no process groups."""
    described = {"planner_address": "none:0", "job_id": "test", "model": MODEL, "cluster": cluster} | changes
    config = AgentConfig(**described)
    num_groups = len(dist.distributed_c10d._world.pg_map)
    text = raised_by(lambda: attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({})))
    assert len(dist.distributed_c10d._world.pg_map) == num_groups, text
    return text


def assert_refused(text, message, alternative):
    assert text.startswith("Unsupported: ")
    assert message in text
    assert alternative in text.split("; use ")[-1]


@contextmanager
def configured(trained, **options):
    """Set options on built layers, which megatron itself refuses without CUDA, or does not know."""
    plain, changed = trained.config, copy.copy(trained.config)
    vars(changed).update(options)
    for layer in trained.network.moe:
        layer.config = changed
    yield
    for layer in trained.network.moe:
        layer.config = plain
