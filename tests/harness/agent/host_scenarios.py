"""Scenarios that ranks run with weights in host memory. Each returns JSON for its tests."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from harness.agent.contract_scenarios import Result, message_of
from relibra.agent.transport import HostWeights, Pull


def pulls_at_any_time(group: dist.ProcessGroup) -> Result:
    """Every rank pulls experts of any rank, and sees a change only after a refresh."""
    rank, world, rng = dist.get_rank(group), dist.get_world_size(group), np.random.default_rng(dist.get_rank(group))

    def value(peer: int, expert: int, version: int) -> float:
        return peer * 100.0 + expert + 1000.0 * version

    shapes = [[((3, 5), torch.bfloat16), ((7,), torch.float32)], [((2,), torch.bfloat16)]] * 4
    experts = [[torch.zeros(shape, dtype=dtype) for shape, dtype in each] for each in shapes]
    host = HostWeights(group, experts)
    empty, wrong = message_of(lambda: host.start([])), 0
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
                wrong += not all(torch.equal(t, torch.full_like(t, want)) for t in pull.into)
    slot = torch.zeros(2, dtype=torch.bfloat16)
    under_way = host.start([Pull(0, 1, [slot])])
    messages = {
        "empty": empty,
        "size": message_of(lambda: host.start([Pull(0, 1, [torch.zeros(3, dtype=torch.bfloat16)])])),
        "reuse": message_of(lambda: host.start([Pull(0, 1, [slot])])),
        "early": message_of(host.refresh),
    }
    under_way.wait()
    host.refresh()
    return {"wrong": wrong, **messages}


SCENARIOS: dict[str, Callable[[dist.ProcessGroup], Result]] = {"host": pulls_at_any_time}
