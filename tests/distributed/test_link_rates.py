"""Before the first step, ranks measure how fast weights and dispatched tokens travel."""

from harness.distributed.layout import EP2_EDP2, EP2_PP2, EP4, ONE_RANK
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import time
    from contextlib import nullcontext
    from types import SimpleNamespace
    from unittest import mock

    import torch.distributed as dist

    from harness.distributed.comparison import balanced_job
    from relibra.agent import link_rates
    from relibra.agent.transport import speed


@on_ranks(EP4, EP2_EDP2, EP2_PP2, ONE_RANK)
def test_all_ranks_hear_the_rates_of_the_slowest(cluster):
    job, _ = balanced_job(cluster)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    fast = job.agent.measure_speeds()[0]
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() * (1e6 if is_last else 1))
    with mock.patch.object(speed, "time", clock):
        slow = job.agent.measure_speeds()[0]
    job.agent.detach()
    for links in (fast, slow):
        told = [links] * dist.get_world_size()
        dist.all_gather_object(told, links)
        assert told == [links] * dist.get_world_size()
        assert (links.inside is not None) == (cluster.gpus_per_node > 1)
        assert (links.from_host is not None) == (cluster.gpus_per_node > 1)
        assert (links.across is not None) == (cluster.num_nodes > 1)
    for rate, with_slow_rank in zip(fast, slow, strict=True):
        assert rate is None or 0 < with_slow_rank < rate / 100


@on_ranks(EP4)
def test_S9_a_rank_without_memory_for_the_measurement_holds_up_nobody(cluster):
    job, _ = balanced_job(cluster)
    failing = mock.patch.object(link_rates, "_buffers", return_value=None)
    with failing if dist.get_rank() == 1 else nullcontext():
        links = job.agent.measure_speeds()[0]
    job.agent.detach()
    assert cluster.num_nodes > 1
    assert links.across is None
    assert links.inside is not None
