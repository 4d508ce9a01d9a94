"""A scenario that notes in which order DDP begins to reduce its buckets, on ranks with different replicas."""

import dataclasses
from typing import Any
from unittest import mock

import torch.distributed as dist
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

from harness.distributed.matrix import balanced_job, num_micro_batches
from relibra.agent import Phase
from relibra.planning import Cluster, StepPlan

Result = dict[str, Any]
BUCKET_SIZE = 2000
"""About the elements of one expert, so that a layer has several buckets."""
LAYER = 1
"""A layer of which only the second EP group has replicas in the last micro-batch."""


class _AtTheEnd:
    """Reduces the buckets when DDP waits for them, in the same order on all ranks, so that no order hangs the ranks."""

    def __init__(self, buckets: _ParamAndGradBucketGroup) -> None:
        self._buckets = buckets

    def wait(self) -> None:
        self._buckets.grad_reduce_handle = None
        _begin(self._buckets)
        self._buckets.grad_reduce_handle.wait()


_begin = _ParamAndGradBucketGroup.start_grad_sync


def reductions(cluster: Cluster) -> Result:
    """Train two steps. From the second one on, DDP reduces early: return the order of its buckets."""
    last = num_micro_batches() - 1
    job, plans = balanced_job(cluster, sharded=True, bucket_size=BUCKET_SIZE)
    agent, begun = job.agent, list[str]()
    assert agent is not None
    plan = plans.answers[1] = _without(plans.answers[1], row=last, layer=LAYER)
    names = {
        id(buckets): f"{kind} {i}"
        for chunk in job.chunks
        for kind, groups in (("dense", chunk.bucket_groups), ("expert", chunk.expert_parallel_bucket_groups))
        for i, buckets in enumerate(groups)
    }

    def note(self: _ParamAndGradBucketGroup, *_: Any, **__: Any) -> None:
        begun.append(names[id(self)])
        self.grad_reduce_handle = _AtTheEnd(self)

    agent.begin_step(0, Phase.UPDATE)
    job.step(0, num_micro_batches())
    agent.end_step()
    applied = agent.begin_step(1, Phase.UPDATE).applied
    with mock.patch.object(_ParamAndGradBucketGroup, "start_grad_sync", note):
        job.step(1, num_micro_batches())
    agent.end_step()
    agent.detach()
    of_groups = [plan.replica_index_Y4[plan.replica_index_Y4[:, 0] == row + last] for row in (0, num_micro_batches())]
    return {
        "begun": begun,
        "buckets": sorted(names.values()),
        "applied": applied is not None,
        "replicas": [each[:, 1:].tolist() for each in of_groups],
        "ep_group": dist.get_rank() // cluster.num_ranks,
    }


def _without(plan: StepPlan | None, *, row: int, layer: int) -> StepPlan:
    """Return the plan without the replicas of a layer in one row."""
    assert plan is not None
    is_kept_Y = (plan.replica_index_Y4[:, :2] != [row, layer]).any(axis=1)
    return dataclasses.replace(plan, replica_index_Y4=plan.replica_index_Y4[is_kept_Y])


SCENARIOS = {"reductions": reductions}
