"""The host copy of a node's layers, beside the transport, on four ranks."""

import torch
import torch.distributed as dist

from harness.agent.sequential_experts import sequential_experts, value_of
from harness.agent.transport_contract import group_of
from harness.distributed.layout import NODE
from harness.distributed.observed import gathered
from harness.distributed.on_ranks import on_ranks
from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.transport import Copy, Fetch, ProcessGroupTransport
from relibra.agent.transport.timed import TimedTransport


@on_ranks(NODE)
def test_S1_S5_experts_are_those_of_the_last_refresh_by_whichever_way_they_come(cluster):
    """All ranks pull the experts of two layers from the host and from each other, before and after a change.

    S1: all ranks measure the same speed, and keep it.
    """
    rank, world, transport = (
        dist.get_rank(),
        cluster.num_ranks,
        TimedTransport(ProcessGroupTransport(group_of(4), torch.device("cpu"))),
    )
    experts = {7: sequential_experts(3), 2: sequential_experts(2)}
    host = HostCopy(group_of(4), transport, experts)
    copies = tuple(Copy(home, slot, (home + 1) % world, slot) for home in range(world) for slot in range(2))
    speeds, num_pulled = [], 0
    for version in range(2):
        for layer, each in experts.items():
            for slot, parameters in enumerate(each.parameters):
                for parameter in parameters:
                    parameter.detach().fill_(value_of(layer, 10 * rank + slot, version))
        scratch = [torch.zeros_like(each) for each in experts[2].parameters[0]]
        host.refresh(lambda _, scratch=scratch: scratch)
        for layer, each in experts.items():
            frozen = host.of(layer)
            speeds.append(frozen.speed)
            for speed in (frozen.speed, 0.0, 1e9):  # as measured, from peers alone, and from the host alone
                slots = [[torch.zeros_like(t) for t in each.parameters[0]] for _ in range(2)]
                handles = Fetch.of(
                    transport,
                    copies,
                    lambda slot, each=each: [parameter.detach() for parameter in each.parameters[slot]],
                    slots.__getitem__,
                    frozen._replace(speed=speed),
                ).start()
                for handle in handles:
                    handle.wait()
                num_pulled += len(handles) - 1
                for slot, tensors in enumerate(slots):
                    want = value_of(layer, 10 * ((rank - 1) % world) + slot, version)
                    assert all(bool((tensor == want).all()) for tensor in tensors)
    assert num_pulled >= 4
    (speed,) = {speed for of_rank in gathered(speeds) for speed in of_rank}
    assert speed > 0


@on_ranks(NODE)
def test_a_pipeline_stage_without_moe_layers_refreshes_nothing(cluster):
    """Its ranks take part, because the step has replicas in other stages."""
    asked = []
    HostCopy(group_of(4), TimedTransport(ProcessGroupTransport(group_of(4), torch.device("cpu"))), {}).refresh(
        asked.append
    )
    assert asked == []
