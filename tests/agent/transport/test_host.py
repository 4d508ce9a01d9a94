"""The host copy of weights, pulled by four ranks in processes of their own, and by two ranks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.agent.transport_contract import group_of
from harness.distributed.layout import NODE
from harness.distributed.on_ranks import on_ranks
from relibra.agent.transport import HostWeights, Pull
from relibra.errors import InvalidInput, RelibraError


@pytest.mark.parametrize("world", [4, 2])
@on_ranks(NODE)
def test_S5_every_rank_pulls_what_was_refreshed_last(cluster, world):
    """Every rank pulls experts of any rank, and sees a change only after a refresh."""
    group = group_of(world)
    rank = dist.get_rank(group)
    rng = np.random.default_rng(rank)

    def value(peer, expert, version):
        return peer * 100.0 + expert + 1000.0 * version

    shapes = [[((3, 5), torch.bfloat16), ((7,), torch.float32)], [((2,), torch.bfloat16)]] * 4
    experts = [[torch.zeros(shape, dtype=dtype) for shape, dtype in each] for each in shapes]
    host = HostWeights(group, experts)
    for version in range(5):
        for i, each in enumerate(experts):
            for tensor in each:
                tensor.fill_(value(rank, i, version))
        host.refresh()
        for _ in range(20):
            pulls = [
                Pull(int(rng.integers(world)), i, [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes[i]])
                for i in rng.integers(len(shapes), size=3).tolist()
            ]
            handle = host.start(pulls)
            handle.wait()
            handle.wait()
            for pull in pulls:
                want = value(pull.peer, pull.expert, version)
                assert all(torch.equal(t, torch.full_like(t, want)) for t in pull.into)


@on_ranks(NODE)
def test_misuse_of_the_host_copy_is_refused_by_name(cluster):
    host = HostWeights(group_of(4), [[torch.zeros(2, dtype=torch.bfloat16)]])
    with pytest.raises(RelibraError, match=r"^the host copy of the weights is empty"):
        host.start([])
    host.refresh()
    slot = torch.zeros(2, dtype=torch.bfloat16)
    under_way = host.start([Pull(0, 0, [slot])])
    with pytest.raises(InvalidInput, match=r"^pull.into: expected tensors of \[\(\(2,\), torch.bfloat16\)\], got"):
        host.start([Pull(0, 0, [torch.zeros(3, dtype=torch.bfloat16)])])
    with pytest.raises(InvalidInput, match=r"^parcel.tensor: expected memory that no transfer under way"):
        host.start([Pull(0, 0, [slot])])
    with pytest.raises(RelibraError, match=r"^1 pulls are under way"):
        host.refresh()
    under_way.wait()
    host.refresh()
