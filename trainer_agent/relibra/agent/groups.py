"""Who talks to whom: all ranks, the EP group, the ranks of one node."""

from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from relibra.agent.config import AgentConfig
from relibra.errors import Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The process groups of one rank."""

    everyone: dist.ProcessGroup
    """All ranks of all EP groups: they share one placement, hence one decision."""
    ep: dist.ProcessGroup
    node: dist.ProcessGroup
    """Ranks of this EP group on this node, in order of EP rank."""
    ep_rank: int
    ep_group: int
    """Index of this EP group: the rank in the expert-data-parallel group."""

    @classmethod
    def create(cls, ep: dist.ProcessGroup, ep_group: int, config: AgentConfig) -> "Groups":
        """Collective over all ranks: create the node groups.

        Raises:
            Unsupported: the job has ranks outside its expert-parallel groups (pipeline parallelism).
        """
        cluster = config.cluster
        num_expected = cluster.num_ranks * cluster.num_ep_groups
        if dist.get_world_size() != num_expected:
            raise Unsupported(
                f"{dist.get_world_size()} ranks, but {cluster.num_ep_groups} EP groups of {cluster.num_ranks}: "
                "pipeline parallelism is not supported; use pipeline_model_parallel_size=1"
            )
        ep_groups: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(ep_groups, dist.get_process_group_ranks(ep))
        size, own = cluster.gpus_per_node, None
        for ranks in sorted({tuple(ranks) for ranks in ep_groups}):
            for first in range(0, len(ranks), size):
                members = list(ranks[first : first + size])
                group = dist.new_group(members, timeout=timedelta(seconds=config.collective_timeout_s))
                if dist.get_rank() in members:
                    own = group
        assert own is not None
        assert dist.group.WORLD is not None
        return cls(everyone=dist.group.WORLD, ep=ep, node=own, ep_rank=dist.get_rank(ep), ep_group=ep_group)

    def close(self) -> None:
        """Give back the group this object created."""
        dist.destroy_process_group(self.node)
