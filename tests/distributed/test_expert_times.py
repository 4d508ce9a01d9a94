"""Before the first step, ranks measure how fast their experts are."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from contextlib import nullcontext
    from types import SimpleNamespace
    from unittest import mock

    import torch
    import torch.distributed as dist

    from harness.distributed.comparison import balanced_job
    from harness.distributed.observed import logged
    from relibra.agent.expert_times import ExpertTimes, measure_experts
    from relibra.agent.transport import speed

_FIXED = 10


@pytest.mark.parametrize("options", [{}, {"grouped": True}], ids=["sequential", "grouped"])
@on_ranks(EP2_EDP2, EP4)
def test_all_ranks_hear_the_times_of_the_slowest(cluster, options):
    """The clock of each rank counts the tokens of its experts and, for each expert that has some, ten more."""
    job, _ = balanced_job(cluster, **options)
    computed, slowness = [0], 1 + dist.get_rank()
    experts = job.agent._experts[min(job.agent._experts)].module
    plain = experts.forward

    def forward(tokens, tokens_per_expert, probs):
        computed[0] += len(tokens) + _FIXED * int(tokens_per_expert.count_nonzero())
        return plain(tokens, tokens_per_expert, probs)

    clock = SimpleNamespace(perf_counter=lambda: computed[0] * slowness / 1e6)
    gathered, everyone = job.agent._context.fetcher.gathered, job.agent._groups.everyone
    with mock.patch.object(speed, "time", clock), mock.patch.object(experts, "forward", forward):
        times = measure_experts(job.agent._experts, gathered, everyone, torch.device("cpu"))
    job.agent.detach()
    assert times == pytest.approx((dist.get_world_size(), _FIXED * dist.get_world_size()))


@on_ranks(EP4)
def test_S9_a_rank_that_cannot_measure_holds_up_nobody_and_nobody_has_times(cluster):
    job, _ = balanced_job(cluster)
    experts = job.agent._experts[min(job.agent._experts)].module
    failing = mock.patch.object(experts, "forward", side_effect=RuntimeError("no memory"))
    with logged() as messages, failing if dist.get_rank() == 1 else nullcontext():
        times = job.agent.measure_speeds()[1]
    job.agent.detach()
    assert times == ExpertTimes()
    assert any("could not measure how fast experts are" in said for said in messages()) == (dist.get_rank() == 1)
