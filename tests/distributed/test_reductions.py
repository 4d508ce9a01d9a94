"""Ranks with different replicas begin the reductions of DDP in one order."""

from harness.distributed.layout import EP2_EDP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import dataclasses
    from unittest import mock

    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

    from harness.distributed.comparison import balanced_job, num_micro_batches
    from harness.distributed.observed import gathered
    from relibra.agent import Phase
    from relibra.planning import Replicas

    begin = _ParamAndGradBucketGroup.start_grad_sync

BUCKET_SIZE = 2000
"""About the elements of one expert, so that a layer has several buckets."""
LAYER = 1
"""A layer of which only the second EP group has replicas in the last micro-batch."""


class AtTheEnd:
    """Reduces the buckets when DDP waits for them, in the same order on all ranks, so that no order hangs the ranks."""

    def __init__(self, buckets):
        self._buckets = buckets

    def wait(self):
        self._buckets.grad_reduce_handle = None
        begin(self._buckets)
        self._buckets.grad_reduce_handle.wait()


@on_ranks(EP2_EDP2)
def test_S5_ranks_with_different_replicas_begin_reductions_in_one_order(cluster):
    """Ranks that hold the same experts would wait for each other's other bucket, or add it up without noticing.

    From the second step on, DDP reduces early.
    """
    last, begun = num_micro_batches() - 1, []
    job, plans = balanced_job(cluster, sharded=True, bucket_size=BUCKET_SIZE)
    agent, plan = job.agent, plans.answers[1]
    index_Y4 = plan.replicas.index_Y4
    index_Y4 = index_Y4[(index_Y4[:, :2] != [last, LAYER]).any(axis=1)]
    replicas = Replicas.of(index_Y4, *plan.replicas.count_ML.shape)
    plans.answers[1] = dataclasses.replace(plan, replicas=replicas)
    names = {
        id(buckets): f"{kind} {i}"
        for chunk in job.chunks
        for kind, groups in (("dense", chunk.bucket_groups), ("expert", chunk.expert_parallel_bucket_groups))
        for i, buckets in enumerate(groups)
    }

    def note(self, *_, **__):
        begun.append(names[id(self)])
        self.grad_reduce_handle = AtTheEnd(self)

    agent.begin_step(0, Phase.UPDATE)
    job.step(0, num_micro_batches())
    agent.end_step()
    assert agent.begin_step(1, Phase.UPDATE).applied is not None
    with mock.patch.object(_ParamAndGradBucketGroup, "start_grad_sync", note):
        job.step(1, num_micro_batches())
    agent.end_step()
    agent.detach()
    of_group, of_other_group = (
        index_Y4[index_Y4[:, 0] == row + last][:, 1:].tolist() for row in (0, num_micro_batches())
    )
    assert of_group
    assert of_group != of_other_group
    assert LAYER not in {layer for layer, _, _ in of_group}, "one group has no replicas of this layer"
    assert LAYER in {layer for layer, _, _ in of_other_group}, "and the other has some"
    assert sorted(begun) == sorted(names.values())
    assert sum(name.startswith("expert") for name in begun) > 6, "layers have several buckets"
    assert all(other == begun for other in gathered(begun))
